"""Handlers: what runs an execution, and keeps its lease while it does."""

from __future__ import annotations
