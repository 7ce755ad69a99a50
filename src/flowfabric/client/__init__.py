"""The client of the engine: one file for each noun, one method for each operation of the engine."""

from __future__ import annotations

from flowfabric.client.facade import FlowFabric

__all__ = ["FlowFabric"]
