"""Verbs: one file per noun, one method per operation of the engine."""

from __future__ import annotations

from flowfabric.client.facade import FlowFabric

__all__ = ["FlowFabric"]
