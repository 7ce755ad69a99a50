"""Signals for child processes of tests."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """Make a child process react to SIGINT; use as `preexec_fn`.

    A test run in the background ignores SIGINT, and its children would inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
