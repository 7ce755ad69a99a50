"""`flowfabric worker`: run the tasks of an app until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from flowfabric.app.app import App
from flowfabric.cli.database import URL_OPTION, failures_as_exit_codes
from flowfabric.cli.references import APP_ARGUMENT, load_app
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import InvalidInput
from flowfabric.telemetry import WORKER_LOGGER, install_logging
from flowfabric.worker.worker import Worker


def worker(
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
    database_url: str | None = URL_OPTION,
) -> None:
    """Work on the tasks of an app. SIGTERM or Ctrl-C finishes what runs, then stops."""
    with failures_as_exit_codes():
        settings = Settings.from_environment()
        try:
            install_logging(settings.log_format, settings.log_level)
        except ValueError as error:
            raise InvalidInput(field="FLOWFABRIC_LOG_LEVEL", problem=str(error)) from error
        for sentence in unknown_variables():
            WORKER_LOGGER.warning("%s", sentence)
        found = load_app(app)
        if database_url is not None:
            found.settings = replace(found.settings, database_url=database_url)
        asyncio.run(
            serve(
                found,
                _stop_on_signals,
                lanes=split(lanes),
                concurrency=concurrency,
                needs=split(needs) or [],
                worker_id=worker_id,
            )
        )


async def serve(
    app: App,
    arm: Callable[[Worker], None],
    begun: Callable[[], None] | None = None,
    **options: Any,
) -> None:
    """Work until the worker is stopped by whoever `arm` told of it, then close the app. `begun` is
    called when the startup hooks are done."""
    try:
        worker = await app.worker(**options)
        arm(worker)
        if begun is not None:
            await worker.begin()
            begun()
        await worker.run()
    finally:
        await app.close()
    if worker.has_stuck_handlers:
        # Their work was given back. The loop would wait for them for ever.
        WORKER_LOGGER.warning("ending although handlers ignore that they were cancelled")
        logging.shutdown()
        os._exit(0)


def _stop_on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        WORKER_LOGGER.info("%s: draining; again to stop at once", name)
        worker.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)


def split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
