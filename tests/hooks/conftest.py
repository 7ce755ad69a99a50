"""The fixtures of worker/apps.py, for the tests of this folder that need a worker."""

from __future__ import annotations

from worker.apps import make_app

__all__ = ["make_app"]
