"""Lets a handler wait for signals. The handler keeps its slot, or its execution is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from flowfabric.core.signal import Wait, WaitAnswer
from flowfabric.core.states import StepKind
from flowfabric.core.step import StepRecord
from flowfabric.handlers.journal import Entry
from flowfabric.handlers.steps import RESERVED_PREFIX
from flowfabric.handlers.waits import EndedWait, SignalWait
from flowfabric.tasks.signals import signal_schema

if TYPE_CHECKING:
    from flowfabric.handlers.conditions import Condition
    from flowfabric.handlers.durable_run import DurableRun
    from flowfabric.tasks.codec import Codec

# How often a wait looks for its signal while other work of the handler is in flight.
_LOOK_SECONDS = 0.5

_SIGNAL = f"{RESERVED_PREFIX}signal "


def signal_step(name: str) -> str:
    """Return the name of the step that records a wait for a signal."""
    return f"{_SIGNAL}{name}"


class SignalWaits:
    """The waits for signals of one run of a handler."""

    def __init__(self, durable: DurableRun) -> None:
        self._durable = durable

    async def wait(
        self,
        name: str,
        declare: Callable[[], Awaitable[dict[str, Any]]],
        timeout: timedelta | None,
        *,
        is_own: bool,
        has_default: bool,
        needs_ids: bool = False,
        reason_code: str = "waiting_for_signal",
    ) -> StepRecord | WaitAnswer:
        """Wait for signals, take the answer and return it. The handler can pause meanwhile.

        `is_own` says that the handler itself waits, not a concurrent branch. A branch takes its
        answer only when it continues, so a branch that loses a race leaves the signal to other
        waits.

        `declare` registers the types of the values and returns the condition. `has_default` is
        stored, so that `flowfabric why` can say what happens at the timeout. If `needs_ids` is
        true, the call asks the database even if an earlier run recorded the answer, because the
        record of the step does not contain the ids of the signals.
        """
        durable = self._durable
        entry = await durable.begin_step(name, StepKind.WAIT, is_own=is_own)
        is_begun = entry.record is None
        try:
            if entry.record is not None and entry.record.ready_at is not None:
                await durable.waits.wait(EndedWait(entry.record.ready_at))
                durable.check_running()
                if not needs_ids:
                    return entry.record
            wait = Wait(
                name=entry.name,
                occurrence=entry.occurrence,
                position=entry.position,
                is_sequential=entry.is_sequential,
                condition={**await declare(), "default": has_default},
                timeout=timeout,
                follows=entry.follows,
                code_version=durable.code_version,
            )
            while True:
                answer = await self._ask(wait, take=is_own, entry=entry)
                if is_begun:
                    # The wait is open, so the handler may pause from now on.
                    is_begun = False
                    durable.end_step()
                if answer.word in ("ready", "timed_out"):
                    assert answer.ready_at is not None
                    await durable.waits.wait(EndedWait(answer.ready_at))
                    durable.check_running()
                    # Another branch may have taken the signal; then this branch waits again.
                    answer = await self._ask(wait, take=True, entry=entry)
                if answer.word == "taken":
                    return answer
                if answer.word == "open":
                    await durable.waits.wait(
                        SignalWait(
                            entry.name,
                            entry.occurrence,
                            answer.until_at,
                            partial(self._watch, wait, entry),
                            reason_code,
                        )
                    )
                    durable.check_running()
        finally:
            if is_begun:
                durable.end_step()

    async def declare_one(self, address: dict[str, Any], codec: Codec) -> dict[str, Any]:
        """Register the type of a signal's value. Return `address` with the id of the type.

        If the signal takes any value, return `address` unchanged.
        """
        schema = signal_schema(codec)
        if schema is None:
            return address
        (id,) = await self._register([schema])
        return {**address, "schema": id}

    async def declare(self, condition: Condition[Any]) -> dict[str, Any]:
        """Register the types of a condition's values, and return the condition as the engine stores
        it."""
        ones = [one for one in condition.ones() if one.schema is not None]
        if ones:
            ids = await self._register([one.schema for one in ones if one.schema is not None])
            for one, id in zip(ones, ids, strict=True):
                one.schema_id = id
        return condition.to_json()

    async def _register(self, schemas: Sequence[dict[str, Any]]) -> Sequence[int]:
        register = self._durable.client.signals.register_types
        return await self._durable.query(register(schemas))

    async def _ask(self, wait: Wait, *, take: bool, entry: Entry) -> WaitAnswer:
        durable = self._durable
        durable.check_running()
        if not entry.is_recorded and durable.frames.is_used:
            await durable.frames.flush()
        wait.take = take
        ask: Callable[[], Awaitable[WaitAnswer]] = partial(
            durable.client.signals.ask, durable.claimed, wait
        )
        answer = await durable.query(durable.write(ask))
        durable.asked(entry, answer.recorded_at)
        durable.check_running()
        return answer

    def _watch(self, wait: Wait, entry: Entry, future: asyncio.Future[Any]) -> None:
        """Look for the signal at intervals, because the handler cannot pause while work is in
        flight.
        """

        async def look() -> None:
            while not future.done():
                await asyncio.sleep(_LOOK_SECONDS)
                wait.take = False
                answer = await self._durable.write(
                    partial(self._durable.client.signals.ask, self._durable.claimed, wait)
                )
                if answer.word != "open" and not future.done():
                    future.set_result(None)

        def stopped(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) and not future.done():
                future.set_exception(error)

        watching = asyncio.ensure_future(look())
        watching.add_done_callback(stopped)
        future.add_done_callback(lambda _: watching.cancel())
