"""`flowfabric dev`: a database, its schema and a worker that restarts on save, in one command."""

from __future__ import annotations

from flowfabric.cli.dev.command import dev

__all__ = ["dev"]
