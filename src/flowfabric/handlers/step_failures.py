"""Failed steps of one handler run, until the handler handles the failure or the attempt ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from flowfabric.handlers.journal import Entry


@dataclass(slots=True, eq=False)
class StepFailure:
    """A step that failed in this run and is not recorded.

    A failure that the handler handles is recorded before the handler does anything else durable.
    A failure that fails the attempt is not recorded: the next attempt calls the function again.
    """

    entry: Entry
    value: bytes
    # The tasks in which the step failed and in which `ctx.step` was called; None for a thread.
    task: asyncio.Task[Any] | None
    caller: asyncio.Task[Any] | None
    writing: asyncio.Task[None] | None = None

    def is_handled(self, is_own: bool) -> bool:
        """Tell whether the code that runs now has handled the failure.

        `is_own` says that the handler's own flow runs, not a task that the handler started.
        """
        task, here = self.task, asyncio.current_task()
        if task is None:
            return is_own
        if task is here or not task.done():
            return task is here
        if not is_exception_retrieved(task):
            return False
        if task.cancelled() or task.exception() is not None:
            # Other branches of the handler do not know about the failure.
            return is_own or self.caller is here
        return True


def is_exception_retrieved(task: asyncio.Task[Any]) -> bool:
    """Tell whether somebody has received the exception of a finished task, without receiving it.

    asyncio keeps the answer in a private attribute and has no public way to ask: `exception()`
    itself counts as receiving. tests/unit/test_step_failures.py pins what the attribute says.
    """
    return not getattr(task, "_log_traceback", False)
