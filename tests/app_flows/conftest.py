"""The fixtures of worker/apps.py, for the tests of this folder."""

from __future__ import annotations

from worker.apps import app, make_app, plain_environment

__all__ = ["app", "make_app", "plain_environment"]
