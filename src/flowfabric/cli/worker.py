"""`flowfabric worker`: run the tasks of an app until SIGTERM or SIGINT stops the worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowfabric.cli.imports import APP_ARGUMENT, load_app
from flowfabric.cli.options import EXIT_INTERRUPTED, Database, exit_code
from flowfabric.config import DATABASE_URL_VARIABLES as URL_VARIABLES
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.telemetry import WORKER_LOGGER, install_logging

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.worker import Worker


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Option group: the lanes, the concurrency and the capabilities of a worker."""

    lanes: Annotated[
        str | None,
        typer.Option(
            "--lanes",
            "-l",
            metavar="A,B",
            help="Run executions of these lanes only. Default: all lanes of the app's tasks.",
        ),
    ] = None
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Run at most this many executions at once in this process.",
        ),
    ] = 20
    needs: Annotated[
        str | None,
        typer.Option(
            "--needs",
            metavar="GPU,...",
            help="Offer these capabilities to tasks that need them. Default: none.",
        ),
    ] = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of `App.worker`."""
        return {
            "lanes": split(self.lanes),
            "concurrency": self.concurrency,
            "needs": split(self.needs) or [],
        }


@dataclass(frozen=True, kw_only=True)
class MetricsAddress:
    """Option group: the port and the address where a process serves its metrics."""

    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            help="Serve the metrics of this process for Prometheus on this port. Readers need no "
            "token. Default: no metrics.",
            show_default=False,
        ),
    ] = None
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Serve the metrics on this address.")
    ] = "127.0.0.1"

    def serve(self, serve: Callable[[int, str], int]) -> str | None:
        """Call `serve` with the port and the host, and return the URL of the metrics.

        If no port was given, do nothing, and return None.
        """
        if self.metrics_port is None:
            return None
        try:
            found = serve(self.metrics_port, self.metrics_host)
        except OSError as error:
            raise InvalidInput(field="--metrics-port", problem=str(error)) from error
        return f"http://{self.metrics_host}:{found}/metrics"


def worker(
    database: Database,
    capacity: Capacity,
    app: str = APP_ARGUMENT,
    worker_id: str | None = typer.Option(
        None, "--worker-id", help="Name the pool of this worker. Default: the host name."
    ),
    embedded: bool = typer.Option(
        False, "--embedded", help="Use a Postgres in .flowfabric/, and create it if there is none."
    ),
    finish_only: bool = typer.Option(
        False,
        "--finish-only",
        help="Finish executions that this code version has begun, and begin no new ones.",
    ),
    *,
    metrics: MetricsAddress,
) -> int:
    """Run the tasks of an app.

    After SIGTERM or Ctrl-C the worker claims no more executions, and waits until the running ones
    have finished. After a second signal it releases the running executions immediately.

    Exit codes: 0: stopped by one signal. 130, 143: stopped by a second signal. 6: all slots are
    lost to handlers that do not stop; restart the worker.
    """
    signals = Signals((signal.SIGTERM, signal.SIGINT))
    settings = Settings.from_environment()
    try:
        install_logging(settings.log_format, settings.log_level)
    except ValueError as error:
        raise InvalidInput(field="FLOWFABRIC_LOG_LEVEL", problem=str(error)) from error
    for sentence in unknown_variables():
        WORKER_LOGGER.warning("%s", sentence)
    loaded = load_app(app)
    loaded.settings = _chosen(loaded, database.database_url, is_embedded=embedded)
    if metrics.metrics_port is not None:
        _serve_metrics(loaded, metrics)
    try:
        asyncio.run(
            serve(
                loaded,
                signals,
                **capacity.arguments,
                worker_id=worker_id,
                finish_only=finish_only,
            )
        )
    except KeyboardInterrupt:
        if not signals.code:
            raise
    return signals.code


def _serve_metrics(app: App, address: MetricsAddress) -> None:
    try:
        from flowfabric.server.metrics import WorkerMetrics
    except ModuleNotFoundError as error:
        raise InvalidInput(
            field="--metrics-port",
            problem=f"needs {error.name}; run: pip install 'flowfabric[server]'",
        ) from error
    WORKER_LOGGER.info("serving metrics on %s", address.serve(WorkerMetrics(app).serve))


def _chosen(app: App, url: str | None, *, is_embedded: bool) -> Settings:
    """Return the settings with the chosen database. Raise a usage error if none was chosen."""
    if is_embedded and url is not None:
        raise typer.BadParameter("cannot be combined with --database-url", param_hint="--embedded")
    if is_embedded:
        return replace(app.settings, database_url=None, url=None, embedded=True)
    settings = app.settings if url is None else replace(app.settings, database_url=url, url=None)
    if settings.url is not None:
        raise typer.BadParameter(
            "names a server, and a worker needs a database; give --database-url",
            param_hint="FLOWFABRIC_URL",
        )
    from flowfabric.embedded import exists

    if settings.database_url is None and not settings.embedded and not exists(app.project):
        raise typer.BadParameter(
            f"no database given, and {app.project} has no embedded one. Set "
            f"{' or '.join(URL_VARIABLES)}. For development use `flowfabric dev` or "
            "`flowfabric init`, or pass --embedded.",
            param_hint="--database-url",
        )
    return replace(settings, embedded=settings.database_url is None)


class Signals:
    """Handles signals of the operating system, such as SIGTERM, in a worker process.

    The first signal drains the worker. The second signal releases all executions immediately. The
    third signal ends the process. The signal handlers of asyncio are not used, because they cannot
    run while user code occupies the event loop.
    """

    def __init__(
        self, numbers: Sequence[signal.Signals], *, at_once: signal.Signals | None = None
    ) -> None:
        """Prepare to handle the signals `numbers` and, if given, the signal `at_once`.

        The signal `at_once` releases the executions immediately, even if it is the first signal.
        Sending another signal twice is not reliable: two equal signals may arrive as one.
        """
        self._numbers = numbers
        self._at_once = at_once
        self._before: dict[signal.Signals, Any] = {}
        self._worker: Worker | None = None
        self._received = itertools.count()
        self._is_noticed = False
        self.code = 0

    def arm(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.signal(number, self._receive) for number in self._all()}

    def disarm(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _all(self) -> list[signal.Signals]:
        return [*self._numbers, *filter(None, [self._at_once])]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Use an atomic counter: a second signal may interrupt this function while it handles the
        # first.
        if next(self._received) == 0 and number != self._at_once:
            self._loop.call_soon_threadsafe(self._drain, signal.Signals(number).name)
        else:
            self._second(number)

    def _second(self, number: int) -> None:
        self.code = 128 + number
        for each in self._all():
            signal.signal(each, self._third(each))
        if not self._is_noticed:
            # A handler blocks the loop. The exception interrupts it.
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self._release, signal.Signals(number).name)

    def _third(self, number: signal.Signals) -> Any:
        """Return the signal handler for a third signal. It ends the process.

        If `at_once` was given, the signal handler ignores the signal. In that case the sender
        itself kills a process that does not end.
        """
        if self._at_once is not None:
            # The first signal may arrive after the second one. Even then it must not end the
            # process.
            return signal.SIG_IGN
        return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL

    def _drain(self, name: str) -> None:
        self._is_noticed = True
        WORKER_LOGGER.info("draining after %s; a second signal releases running executions", name)
        if self._worker is not None:
            self._worker.stop()

    def _release(self, name: str) -> None:
        WORKER_LOGGER.info("releasing running executions after a second %s", name)
        if self._worker is not None:
            self._worker.stop_at_once()


async def serve(
    app: App,
    signals: Signals,
    *,
    on_created: Callable[[Worker], None] | None = None,
    on_started: Callable[[], None] | None = None,
    **options: Any,
) -> None:
    """Run a worker until it is stopped, then close the app.

    `on_created` is called with the worker before the worker runs. `on_started` is called after the
    startup hooks.
    """
    worker: Worker | None = None
    code = 0
    try:
        worker = await app.worker(**options)
        signals.arm(worker)
        if on_created is not None:
            on_created(worker)
        if on_started is not None:
            await worker.begin()
            on_started()
        await worker.run()
    except asyncio.CancelledError:
        code = EXIT_INTERRUPTED
        raise
    except Exception as error:
        code = exit_code(error) if isinstance(error, FlowFabricError) else 1
        if worker is not None and worker.has_stuck_handlers:
            # Log it here: os._exit below would swallow the traceback.
            WORKER_LOGGER.error("worker ended by an error", exc_info=error)
        raise
    finally:
        await app.close()
        if worker is not None and worker.has_stuck_handlers:
            # The executions of these handlers were released. The loop would wait forever for the
            # handlers.
            WORKER_LOGGER.warning("worker exits with handlers that ignored their cancellation")
            logging.shutdown()
            os._exit(signals.code or code)
        signals.disarm()


def split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
