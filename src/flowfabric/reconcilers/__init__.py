"""Reconcilers: periodic work, such as handling expired leases and ended delays."""

from __future__ import annotations

from flowfabric.reconcilers.loop import run_reconcilers

__all__ = ["run_reconcilers"]
