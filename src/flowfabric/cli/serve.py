"""`flowfabric serve`: the HTTP server."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from flowfabric.cli.imports import load_app
from flowfabric.cli.options import DatabaseNamespace
from flowfabric.cli.worker import MetricsAddress, split
from flowfabric.config import Settings
from flowfabric.core.errors import InvalidInput
from flowfabric.telemetry import install_logging

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.server.application import Server
    from flowfabric.server.protocol import BoundedProtocol


class Auth(StrEnum):
    """How the server recognises its callers (`--auth`)."""

    TOKENS = "tokens"
    NONE = "none"


def serve(
    database: DatabaseNamespace,
    app: str | None = typer.Argument(
        None,
        metavar="[MODULE:APP]",
        help="Let callers submit the tasks of this app, with the options that the app declares. "
        "Default: no app. With or without an app, callers can submit tasks that workers have "
        "registered.",
        show_default=False,
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="Serve on this address."),
    port: int = typer.Option(
        9090, "--port", min=0, max=65535, help="Serve on this port; 0 takes a free one."
    ),
    auth: Auth = typer.Option(
        Auth.TOKENS,
        "--auth",
        help="Choose who may call the server. tokens: callers with a token. none: every caller on "
        "this machine, without a token; --host must then be a loopback address.",
    ),
    allow_hosts: str | None = typer.Option(
        None,
        "--allow-host",
        metavar="A,B",
        help="Accept only requests with these Host headers. With --auth none, localhost is "
        "accepted, too. Default: only localhost with --auth none, otherwise all.",
        show_default=False,
    ),
    cors_origins: str | None = typer.Option(
        None,
        "--cors-origin",
        metavar="URL,...",
        help="Let pages of these origins call the server. Default: none.",
        show_default=False,
    ),
    *,
    metrics: MetricsAddress,
) -> None:
    """Serve the HTTP API until Ctrl-C or SIGTERM.

    Exit codes: 0: stopped by a signal. 2: wrong usage. 5: no database.
    """
    try:
        from flowfabric.server import server
        from flowfabric.server.principals import is_loopback
        from flowfabric.server.protocol import BoundedProtocol
    except ModuleNotFoundError as error:
        raise InvalidInput(
            field="serve", problem=f"needs {error.name}; run: pip install 'flowfabric[server]'"
        ) from error
    if auth is Auth.NONE and not is_loopback(host):
        raise InvalidInput(
            field="--auth",
            problem=f"none is allowed only on loopback addresses such as 127.0.0.1, not on {host}",
        )
    _check_port(host, port)
    settings = Settings.from_environment()
    install_logging(settings.log_format, settings.log_level)
    served = server(
        _app(database, app),
        auth="none" if auth is Auth.NONE else "tokens",
        hosts=split(allow_hosts) or (),
        cors_origins=split(cors_origins) or (),
        closes_app=True,
    )
    if (address := metrics.serve(served.state.backend.metrics.serve)) is not None:
        logging.getLogger("flowfabric.server").info("serving metrics on %s", address)
    _run(served, host, port, BoundedProtocol)


def _run(served: Server, host: str, port: int, protocol: type[BoundedProtocol]) -> None:
    """Run the server until SIGTERM or SIGINT stops it."""
    import uvicorn

    config = uvicorn.Config(
        served,
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=10,
        http=protocol,
    )
    # After it has stopped, uvicorn sends itself the signal again.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run()


def _check_port(host: str, port: int) -> None:
    """If another program uses the port, raise an error that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return  # uvicorn meets the same error, and logs it
        problem = f"{port} is taken, perhaps by `flowfabric dev`; choose another port"
        raise InvalidInput(field="--port", problem=problem) from None


def _app(database: DatabaseNamespace, reference: str | None) -> App:
    from flowfabric.app.app import App

    loaded = App(name="serve") if reference is None else load_app(reference)
    url, _ = database.resolve()
    space = database.space if database.namespace is not None else loaded.settings.namespace
    loaded.settings = replace(
        loaded.settings, database_url=url, url=None, namespace=space or loaded.settings.namespace
    )
    return loaded
