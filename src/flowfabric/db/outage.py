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
    """Knows whether a database is lost. All connections of a `Database` share one such object."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        # The heartbeat runs in its own thread.
        self._lock = threading.Lock()

    @contextmanager
    def watched(self, patience: float) -> Iterator[None]:
        """Watch the call in the `with` block, to find out whether the database answers.

        A call with patience 0 tries only once. If such a call fails, this does not count as an
        outage yet, because perhaps only the connection of this call is dead.
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

    If the error means that the database is lost, the level is debug, because `Outage` has already
    logged this.
    """
    is_logged = isinstance(error, ConnectionLost) or lost(error)
    return logging.DEBUG if is_logged else logging.WARNING
