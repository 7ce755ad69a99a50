"""Reconcilers: periodic work, such as handling expired leases and ended delays."""

from __future__ import annotations
