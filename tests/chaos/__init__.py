"""Chaos: everything goes wrong at once, and what everybody was told must fit together."""

from __future__ import annotations
