"""The app: its tasks, runs, flows, schedules and workers."""

from __future__ import annotations
