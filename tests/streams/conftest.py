"""The fixtures of worker/apps.py, for the tests of this folder."""

from __future__ import annotations

from worker.apps import app, folder, make_app, plain_environment, quick_beats, start_worker

__all__ = ["app", "folder", "make_app", "plain_environment", "quick_beats", "start_worker"]
