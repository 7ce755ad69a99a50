"""What can be asked about executions, and what it costs."""

from __future__ import annotations
