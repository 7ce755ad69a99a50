"""The application: tasks, their runs, and the workers of a process, put together."""

from __future__ import annotations
