"""`flowfabric demo`: kill a worker, and watch another worker finish its execution."""

from __future__ import annotations

from flowfabric.cli.demo.command import demo

__all__ = ["demo"]
