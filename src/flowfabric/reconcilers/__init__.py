"""Time: what happens because a moment has come, not because somebody called."""

from __future__ import annotations
