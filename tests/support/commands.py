"""Runs commands of `flowfabric` in this process, with their output as in a pipe.

All commands run on one thread with one loop, so that a command can use the warm backends of
earlier commands (support/warm.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner, Result

from flowfabric.cli.main import app

from .warm import run_in

_thread = ThreadPoolExecutor(1, "commands")
_runner = asyncio.Runner()
_is_busy = threading.Lock()
# Typer builds all commands again for each call, which takes 15 ms.
command_of = cache(get_command)


async def invoke(*arguments: str, **options: Any) -> Result:
    """Run a command and return its result."""
    if not _is_busy.acquire(blocking=False):
        # Another command is still running.
        return await asyncio.to_thread(_invoke, arguments, options)
    return await asyncio.get_running_loop().run_in_executor(
        _thread, _invoke_warm, arguments, options
    )


def _invoke_warm(arguments: tuple[str, ...], options: dict[str, Any]) -> Result:
    ours, others_run = threading.current_thread(), asyncio.run

    def run(main: Coroutine[Any, Any, Any], **settings: Any) -> Any:
        if threading.current_thread() is not ours:
            return others_run(main, **settings)
        return run_in(_runner, main)

    try:
        with mock.patch.object(asyncio, "run", run):
            return _invoke(arguments, options)
    finally:
        _is_busy.release()


def _invoke(arguments: tuple[str, ...], options: dict[str, Any]) -> Result:
    with mock.patch("typer.testing._get_command", command_of):
        result = CliRunner().invoke(app, list(arguments), **options)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
