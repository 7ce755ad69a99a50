"""Commands: what a person types."""

from __future__ import annotations
