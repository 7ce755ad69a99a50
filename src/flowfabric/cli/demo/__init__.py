"""`flowfabric demo`: watch an execution survive the kill of its worker."""

from __future__ import annotations

from flowfabric.cli.demo.command import demo

__all__ = ["demo"]
