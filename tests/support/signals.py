"""Signals for child processes of tests."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """For `preexec_fn`: a test run that was started in the background ignores SIGINT, and so would
    its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
