"""`flowfabric worker`: run the tasks of an app until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import typer

from flowfabric.app.app import App
from flowfabric.cli.imports import APP_ARGUMENT, load_app
from flowfabric.cli.options import EXIT_INTERRUPTED, Database, exit_code
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.telemetry import WORKER_LOGGER, install_logging
from flowfabric.worker import Worker


def worker(
    database: Database,
    app: str = APP_ARGUMENT,
    lanes: str | None = typer.Option(
        None, "--lanes", "-l", metavar="A,B", help="Only these lanes. Default: all of its tasks."
    ),
    concurrency: int = typer.Option(
        20, "--concurrency", "-c", min=1, help="How many executions run at once."
    ),
    needs: str | None = typer.Option(
        None, "--needs", metavar="GPU,...", help="Capabilities this worker has."
    ),
    worker_id: str | None = typer.Option(
        None, "--worker-id", help="The name of this worker's pool. Default: the host name."
    ),
) -> int:
    """Work on the tasks of an app. SIGTERM or Ctrl-C finishes what runs, then stops; a second one
    gives it back at once.

    Ends with 0 when it was told to stop, with 6 when handlers that do not stop have taken all its
    slots: start it again.
    """
    signals = Signals((signal.SIGTERM, signal.SIGINT))
    settings = Settings.from_environment()
    try:
        install_logging(settings.log_format, settings.log_level)
    except ValueError as error:
        raise InvalidInput(field="FLOWFABRIC_LOG_LEVEL", problem=str(error)) from error
    for sentence in unknown_variables():
        WORKER_LOGGER.warning("%s", sentence)
    found = load_app(app)
    if database.database_url is not None:
        found.settings = replace(found.settings, database_url=database.database_url)
    try:
        asyncio.run(
            serve(
                found,
                signals,
                lanes=split(lanes),
                concurrency=concurrency,
                needs=split(needs) or [],
                worker_id=worker_id,
            )
        )
    except KeyboardInterrupt:
        if not signals.code:
            raise
    return signals.code


class Signals:
    """What a worker's process does when it is told to end. The first time it drains, the second
    time it gives back what runs at once, then it ends as any process would.

    These are not the loop's own signal handlers: those wait for a handler that blocks the loop.
    """

    def __init__(
        self, numbers: Sequence[signal.Signals], *, at_once: signal.Signals | None = None
    ) -> None:
        """`at_once` does not wait for a second time: two of one signal may arrive as one."""
        self._numbers = numbers
        self._at_once = at_once
        self._before: dict[signal.Signals, Any] = {}
        self._worker: Worker | None = None
        self._is_noticed = False
        self.code = 0

    def arm(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.signal(number, self._first) for number in self._numbers}
        if self._at_once is not None:
            self._before[self._at_once] = signal.signal(self._at_once, self._second)

    def disarm(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _first(self, number: int, frame: FrameType | None) -> None:
        for each in self._numbers:
            signal.signal(each, self._second)
        self._loop.call_soon_threadsafe(self._drain, signal.Signals(number).name)

    def _second(self, number: int, frame: FrameType | None) -> None:
        self.code = 128 + number
        for each in self._numbers:
            is_ctrl_c = each == signal.SIGINT
            signal.signal(each, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
        if not self._is_noticed:
            # A handler blocks the loop: this unwinds it.
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self._give_back, signal.Signals(number).name)

    def _drain(self, name: str) -> None:
        self._is_noticed = True
        WORKER_LOGGER.info("%s: draining; again to give back what runs", name)
        if self._worker is not None:
            self._worker.stop()

    def _give_back(self, name: str) -> None:
        WORKER_LOGGER.info("%s again: giving back what runs", name)
        if self._worker is not None:
            self._worker.stop_at_once()


async def serve(
    app: App,
    signals: Signals,
    *,
    armed: Callable[[Worker], None] | None = None,
    begun: Callable[[], None] | None = None,
    **options: Any,
) -> None:
    """Work until the worker is stopped, by a signal or by whoever `armed` told of it, then close
    the app. `begun` is called when the startup hooks are done."""
    worker: Worker | None = None
    code = 0
    try:
        worker = await app.worker(**options)
        signals.arm(worker)
        if armed is not None:
            armed(worker)
        if begun is not None:
            await worker.begin()
            begun()
        await worker.run()
    except asyncio.CancelledError:
        code = EXIT_INTERRUPTED
        raise
    except Exception as error:
        code = exit_code(error) if isinstance(error, FlowFabricError) else 1
        if worker is not None and worker.has_stuck_handlers:
            # It does not come further than the end of this function.
            WORKER_LOGGER.error("the worker ended", exc_info=error)
        raise
    finally:
        await app.close()
        if worker is not None and worker.has_stuck_handlers:
            # Their work was given back. The loop would wait for them for ever.
            WORKER_LOGGER.warning("ending although handlers ignore that they were cancelled")
            logging.shutdown()
            os._exit(signals.code or code)
        signals.disarm()


def split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
