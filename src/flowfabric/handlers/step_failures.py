"""Failed steps of one handler run that are not recorded yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from flowfabric.handlers.journal import Entry


@dataclass(slots=True, eq=False)
class StepFailure:
    """A step that failed in this run and is not recorded yet.

    A failure that the handler catches is recorded before the handler does anything else durable.
    A failure that fails the attempt is not recorded: the next attempt calls the function again.
    """

    entry: Entry
    value: bytes
    # The asyncio task in which the step failed, and the task that called `ctx.step`. Both are None
    # in a thread.
    task: asyncio.Task[Any] | None
    caller: asyncio.Task[Any] | None
    writing: asyncio.Task[None] | None = None

    def is_handled(self, is_own: bool) -> bool:
        """Tell whether the running code has caught the failure.

        `is_own` says that the handler itself is running, not one of its branches.
        """
        task, here = self.task, asyncio.current_task()
        if task is None:
            return is_own
        if task is here or not task.done():
            return task is here
        if not is_exception_retrieved(task):
            return False
        if task.cancelled() or task.exception() is not None:
            # Only the handler itself and the caller of the step can have caught the failure.
            return is_own or self.caller is here
        return True


def is_exception_retrieved(task: asyncio.Task[Any]) -> bool:
    """Tell whether any code has retrieved the exception of a finished task.

    asyncio keeps this in a private attribute and offers no public way to ask (decision 0074): a
    call of `task.exception()` would itself retrieve the exception. The attribute is tested in
    tests/unit/test_step_failures.py.
    """
    return not getattr(task, "_log_traceback", False)
