"""The `flowfabric` command and its subcommands."""

from __future__ import annotations
