"""`flowfabric worker`: run the tasks of an app until told to stop."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import typer

from flowfabric.app.app import App
from flowfabric.cli.database import URL_OPTION, failures_as_exit_codes
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import InvalidInput
from flowfabric.telemetry import WORKER_LOGGER, install_logging

APP_ARGUMENT = typer.Argument(
    metavar="MODULE:APP", help="Where the app is, for example `mail:app` for `app` in mail.py."
)


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
            _work(
                found,
                lanes=_split(lanes),
                concurrency=concurrency,
                needs=_split(needs) or [],
                worker_id=worker_id,
            )
        )


def load_app(reference: str) -> App:
    """The app that `module:attribute` names, with the current folder importable."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise typer.BadParameter(
            f"{reference!r} is not of the form module:app", param_hint="MODULE:APP"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it is there, but imports something that is not
        raise typer.BadParameter(
            f"there is no module {module_name!r} in {here} or installed", param_hint="MODULE:APP"
        ) from error
    app = module
    for part in attribute.split("."):
        app = getattr(app, part, None)  # type: ignore[assignment]
    if not isinstance(app, App):
        apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
        hint = f"; it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else ""
        raise typer.BadParameter(
            f"{module_name!r} has no App named {attribute!r}{hint}", param_hint="MODULE:APP"
        )
    return app


async def _work(
    app: App,
    *,
    lanes: list[str] | None,
    concurrency: int,
    needs: list[str],
    worker_id: str | None,
) -> None:
    try:
        worker = await app.worker(
            lanes=lanes, concurrency=concurrency, needs=needs, worker_id=worker_id
        )
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            WORKER_LOGGER.info("%s: draining; again to stop at once", name)
            worker.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number.name)
        await worker.run()
    finally:
        await app.close()
    if worker.has_stuck_handlers:
        # Their work was given back. The loop would wait for them for ever.
        WORKER_LOGGER.warning("ending although handlers ignore that they were cancelled")
        logging.shutdown()
        os._exit(0)


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
