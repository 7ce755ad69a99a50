"""Handlers: what the function of a task may do while a worker runs it, and what it remembers."""

from __future__ import annotations
