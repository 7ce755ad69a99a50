"""Reports of usage. Each is recorded like a step, so that a later run does not count it again."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from flowfabric.core.execution import MAX_NAME_BYTES
from flowfabric.handlers.step_calls import Done, StepCall
from flowfabric.handlers.steps import USAGE, check_name

if TYPE_CHECKING:
    from flowfabric.handlers.durable_run import DurableRun
    from flowfabric.handlers.handler_run import HandlerRun
    from flowfabric.handlers.journal import Entry


class UsageReport(StepCall):
    """A step that reports usage to the budgets of the execution."""

    __slots__ = ("_usage",)

    def __init__(
        self, run: HandlerRun, durable: DurableRun, name: str, usage: Mapping[str, int]
    ) -> None:
        super().__init__(run, durable, name, _report, (), {}, None)
        self._usage = usage

    async def do(self, entry: Entry) -> Done:
        self._args = (self.durable, self._usage, self.durable.usage_key(entry))
        return await super().do(entry)

    def do_sync(self, entry: Entry) -> Done:
        self._args = (self.durable, self._usage, self.durable.usage_key(entry))
        return super().do_sync(entry)


async def _report(durable: DurableRun, usage: Mapping[str, int], key: str) -> str:
    return await durable.report_usage(usage, key)


def usage_step(name: str | None, usage: Mapping[str, int], *, is_own: bool) -> str:
    """Return the name of the step that records a report of usage.

    If `name` is None, all reports of the handler itself (`is_own`) have the same name, because the
    order of these reports is fixed. The reports of branches come in any order, so their names
    contain the amounts. Reports with equal amounts are interchangeable.
    """
    if name is not None:
        check_name(name)
    elif is_own:
        return USAGE
    else:
        name = " ".join(f"{dimension}={amount}" for dimension, amount in sorted(usage.items()))
    step = f"{USAGE} {name}"
    if len(step.encode()) > MAX_NAME_BYTES:
        return f"{USAGE} {sha256(name.encode()).hexdigest()}"
    return step
