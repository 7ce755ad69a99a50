"""Log once that the database is lost, and once that it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from flowfabric.core.errors import ConnectionLost
from flowfabric.db.call import lost
from flowfabric.telemetry import ENGINE_LOGGER


class Outage:
    """Tracks whether a database is lost. One object serves all connections to that database."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        # The heartbeat runs in its own thread.
        self._lock = threading.Lock()

    @contextmanager
    def watched(self, patience: float) -> Iterator[None]:
        """Watch a call, to find out whether the database answers.

        A call with patience 0 tries only once. Its failure is not yet an outage: perhaps only its
        own connection is dead.
        """
        began = monotonic()
        try:
            yield
        except ConnectionLost as error:
            if patience > 0:
                self._begin(error, began)
            raise
        self._end()

    def _begin(self, error: ConnectionLost, since: float) -> None:
        with self._lock:
            if self._since is not None:
                return
            self._since = since
        ENGINE_LOGGER.warning(
            "database lost, trying again until it is back: %s: %s", self._address, error
        )

    def _end(self) -> None:
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            away = monotonic() - since
            ENGINE_LOGGER.warning("database is back after %.1f s: %s", away, self._address)


def level_of(error: BaseException) -> int:
    """Return the log level for an error after which the caller tries again.

    The level is debug if the database is lost, because `Outage` already logs that.
    """
    is_logged = isinstance(error, ConnectionLost) or lost(error)
    return logging.DEBUG if is_logged else logging.WARNING
