"""Two or more connections at once: who waits, who is turned away, who wins."""

from __future__ import annotations
