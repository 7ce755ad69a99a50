"""Words: what things are called. Standard library only."""

from __future__ import annotations
