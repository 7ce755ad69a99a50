"""What a handler can know about the execution it runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowfabric.core.execution import Claimed
    from flowfabric.core.ids import ExecutionId


class Context:
    """The execution a handler runs: who it is, which attempt, and whether to stop.

    A parameter annotated with this class receives it; `flowfabric.current()` gives the same one.
    """

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed
        self._cancelled = False

    @property
    def execution_id(self) -> ExecutionId:
        return self._claimed.id

    @property
    def task(self) -> str:
        return self._claimed.task

    @property
    def attempt(self) -> int:
        """0 for the first attempt, then 1, 2, ..."""
        return self._claimed.attempt_index

    @property
    def epoch(self) -> int:
        """The fencing number of this lease; it rises with every new one."""
        return self._claimed.epoch

    @property
    def cancelled(self) -> bool:
        """True once the lease is lost or the worker stops: nothing done from then on counts.

        An `async def` handler is cancelled anyway; a `def` handler has to look.
        """
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True


running: ContextVar[Context | None] = ContextVar("flowfabric_context", default=None)


def current() -> Context:
    """The context of the handler that is running here."""
    context = running.get()
    if context is None:
        raise RuntimeError("current() was called outside a handler: no execution is running here")
    return context
