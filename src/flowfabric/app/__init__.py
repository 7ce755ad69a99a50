"""The app: its tasks, runs, flows and schedules, and the workers of a process."""

from __future__ import annotations
