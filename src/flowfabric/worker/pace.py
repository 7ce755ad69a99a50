"""Measures how fast a worker ends executions, to choose the size of its claims."""

from __future__ import annotations

# A claim brings as many executions as the worker ends in this time.
HORIZON_SECONDS = 0.05
# If handlers take longer than this on average, the worker claims only for free slots: another
# worker could run the waiting executions sooner.
SLOW_SECONDS = 0.1
# The pace is computed again after this many executions or this much time.
_WINDOW_COUNT = 100
_WINDOW_SECONDS = 0.025


class Pace:
    """The rate at which executions end. Time without executions does not count."""

    def __init__(self) -> None:
        self._per_second = 0.0
        # The start of the window, moved forward by the time without executions.
        self._since = 0.0
        self._last_end = 0.0
        self._ended = 0
        self._seconds = 0.0

    @property
    def within_horizon(self) -> int:
        """How many executions will probably end within HORIZON_SECONDS; 0 if handlers are slow."""
        return int(self._per_second * HORIZON_SECONDS)

    def resume(self, now: float) -> None:
        """Note that there is work again. The idle time up to now does not count."""
        self._since += now - self._last_end
        self._last_end = now

    def end(self, seconds: float, now: float) -> None:
        """Count an execution that has ended now and took `seconds`."""
        self._last_end = now
        self._ended += 1
        self._seconds += seconds
        elapsed = now - self._since
        if self._ended >= _WINDOW_COUNT or elapsed >= _WINDOW_SECONDS:
            is_slow = self._seconds / self._ended > SLOW_SECONDS
            found = 0.0 if is_slow else self._ended / max(elapsed, 1e-6)
            self._per_second = (self._per_second + found) / 2 if self._per_second else found
            self._since, self._ended, self._seconds = now, 0, 0.0

    def forget(self) -> None:
        """Set the pace to 0 until more executions have ended: the handlers have become slow."""
        self._per_second = 0.0
