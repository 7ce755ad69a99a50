"""Tasks: registered functions, how their arguments and results travel, what surrounds a call."""

from __future__ import annotations
