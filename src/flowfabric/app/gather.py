"""Wait for several runs together, inside or outside a handler.

A handler that waits outside its steps frees its slot in the worker. The handler starts again when
enough runs have ended. Its journal records which runs ended first, so that the answer is the same
when the handler starts again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from flowfabric.app.run import Run
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.execution import Ending
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.handlers import (
    MAX_TARGETS,
    AwaitedSignal,
    HandlerRun,
    OnceCall,
    async_only,
    check_no_loop,
    context_of,
    current_run,
)

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric

T = TypeVar("T")

# How many results one call reads.
PAGE = 1000


@async_only("gather_sync")
async def gather(runs: Iterable[Run[T]], /) -> list[T]:
    """Wait until all runs have ended, and return their results in the same order as `runs`.

    If a run did not complete, raises its error, as `Run.result` does. If several runs did not
    complete, raises the error of the run that ended first.
    """
    several = _checked(runs, least=0)
    if not several:
        return []
    client = await _client(several)
    endings: dict[UUID, Ending] = {}
    async for ending in endings_of(client, [run.id for run in several]):
        endings[ending.execution_id] = ending
    failed = [one for one in endings.values() if one.public_state is not PublicState.COMPLETED]
    if failed:
        first = min(failed, key=_by_end)
        await _find(several, first).conclude(first)
    return [run.decode(endings[run.id.uuid]) for run in several]


@dataclass(frozen=True, slots=True)
class First:
    """What `first` returns for several arguments: which one came first (`index`), and its value."""

    index: int
    value: Any


@overload
async def first(runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> T: ...
@overload
async def first(
    one: Run[Any] | Awaitable[Any] | timedelta,
    other: Run[Any] | Awaitable[Any] | timedelta,
    /,
    *more: Run[Any] | Awaitable[Any] | timedelta,
    cancel_rest: bool = False,
) -> First: ...


@async_only("first_sync")
async def first(*awaited: Any, cancel_rest: bool = False) -> Any:
    """Wait for the first of several runs, signals or sleeps.

    `first(runs)` takes a list of runs. It waits until one run has completed, and returns the result
    of that run. If no run completes, it raises the error of the run that ended last.

    `first(run, ctx.signal("stop"))` takes several arguments: runs, `ctx.signal(...)` or
    `ctx.sleep(...)`. In a handler, a timedelta is a sleep. The answer is a `First`: which argument
    came first, and its value. If a failed run came first, its error is raised.

    If `cancel_rest` is true, the other runs are then cancelled, unless an error is raised.
    """
    if len(awaited) == 1:
        (result,) = await quorum_of(1, awaited[0], cancel_rest=cancel_rest)
        return result
    return await _race(awaited, cancel_rest)


async def _race(awaited: Sequence[Any], cancel_rest: bool) -> First:
    """Wait for the first of several runs, signals or sleeps. Then stop waiting for the others."""
    handler_run = current_run.get()
    for one in awaited:
        is_sleep = isinstance(one, timedelta) and handler_run is not None
        if not (is_sleep or isinstance(one, Run | Awaitable)):
            raise InvalidInput(
                field="awaited",
                problem=f"must be runs, signals or sleeps, not {type(one).__name__}",
            )
    branches = [asyncio.ensure_future(_awaiting(one, handler_run)) for one in awaited]
    try:
        await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    finally:
        index = next((n for n, branch in enumerate(branches) if branch.done()), None)
        for branch in branches:
            branch.cancel()
        await asyncio.gather(*branches, return_exceptions=True)
    assert index is not None
    value = branches[index].result()
    if cancel_rest:
        runs = [one for n, one in enumerate(awaited) if n != index and isinstance(one, Run)]
        if runs:
            await _cancel_rest(await _client(runs), runs, (), handler_run)
    return First(index, value)


async def _awaiting(one: Any, handler_run: HandlerRun | None) -> Any:
    if isinstance(one, Run):
        return await one.result()
    if isinstance(one, timedelta) and handler_run is not None:
        return await context_of(handler_run).sleep(one)
    return await one


@async_only("quorum_of_sync")
async def quorum_of(k: int, runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> list[T]:
    """Wait until `k` runs have completed, and return their results in the order of their ends.

    If a run ends without a result, and fewer than `k` runs can then complete, raises the error of
    that run, as `Run.result` does. If `cancel_rest` is true, the runs that have not ended are
    cancelled in both cases.
    """
    several = _checked(runs)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(field="k", problem="must be a whole number, 1 or more")
    if k > len(several):
        raise InvalidInput(field="k", problem=f"is {k}, but there are only {len(several)} runs")
    client = await _client(several)
    handler_run = current_run.get()
    if handler_run is None or not handler_run.is_durable_with(client):
        endings = await _decided(client, several, k, None)
    else:
        if len(several) > MAX_TARGETS:
            raise InvalidInput(
                field="runs", problem=f"a handler can wait for at most {MAX_TARGETS} of them"
            )
        endings = await _recorded(handler_run, client, several, k)
    if cancel_rest:
        await _cancel_rest(client, several, endings, handler_run)
    if len(endings) == k and endings[-1].public_state is PublicState.COMPLETED:
        return [_find(several, ending).decode(ending) for ending in endings]
    last = endings[-1]
    try:
        await _find(several, last).conclude(last)
    except FlowFabricError as error:
        error.add_note(
            f"Because of this run, fewer than {k} of {len(several)} runs can complete."
            if len(several) > 1
            else "It was the only run to wait for."
        )
        raise
    raise AssertionError("the run has not completed, but its result raised no error")


def gather_sync(runs: Iterable[Run[T]], /) -> list[T]:
    """`gather` for synchronous code."""
    several = _checked(runs, least=0)
    return _call(several, lambda: gather(several), "gather(...)") if several else []


@overload
def first_sync(runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> T: ...
@overload
def first_sync(
    one: Run[Any] | AwaitedSignal[Any] | timedelta,
    other: Run[Any] | AwaitedSignal[Any] | timedelta,
    /,
    *more: Run[Any] | AwaitedSignal[Any] | timedelta,
    cancel_rest: bool = False,
) -> First: ...


def first_sync(*awaited: Any, cancel_rest: bool = False) -> Any:
    """`first` for synchronous code; a sleep is given as a timedelta."""
    if len(awaited) == 1:
        several = _checked(awaited[0])
        return _call(several, lambda: first(several, cancel_rest=cancel_rest), "first(...)")
    if (handler_run := current_run.get()) is not None:
        check_no_loop("first(...)")
        return handler_run.call_sync(lambda: _race(awaited, cancel_rest))
    return _call(_checked(awaited), lambda: _race(awaited, cancel_rest), "first(...)")


def quorum_of_sync(k: int, runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> list[T]:
    """`quorum_of` for synchronous code."""
    several = _checked(runs)
    work = lambda: quorum_of(k, several, cancel_rest=cancel_rest)  # noqa: E731
    found: list[T] = _call(several, work, "quorum_of(...)")
    return found


async def endings_of(
    client: FlowFabric, ids: Sequence[ExecutionId], *, is_patient: bool = True
) -> AsyncGenerator[Ending, None]:
    """Yield the ending of each execution as soon as it is known.

    If `is_patient` is true, a handler may instead pause until all executions have ended. It then
    gets all endings together.
    """
    if (handler_run := current_run.get()) is not None:
        all_ = await handler_run.wait_for_ends(ids, len(ids), client) if is_patient else None
        if all_ is not None:
            for ending in sorted(all_, key=_by_end):
                yield ending
            return
        handler_run.report_blocking_wait()
    ended: asyncio.Queue[asyncio.Future[Ending]] = asyncio.Queue()
    waiting = [asyncio.ensure_future(client.results.wait(id)) for id in ids]
    for future in waiting:
        future.add_done_callback(ended.put_nowait)
    try:
        left = len(ids)
        while left:
            # Sort endings that arrive together by time.
            wait = ended.get()
            kept = wait if handler_run is None else handler_run.keep_slot(wait, client)
            found = [(await kept).result()]
            while not ended.empty():
                found.append(ended.get_nowait().result())
            left -= len(found)
            for ending in sorted(found, key=_by_end):
                yield ending
    finally:
        for future in waiting:
            future.cancel()


async def _recorded(
    handler_run: HandlerRun, client: FlowFabric, several: Sequence[Run[Any]], k: int
) -> list[Ending]:
    """Return the endings that decided the wait.

    When the wait is decided, the handler records which endings these are. Later runs of the handler
    get the same endings.
    """

    async def decide(call: OnceCall) -> list[str]:
        if call.is_replayed:
            found: list[str] = call.value
            return found
        return [str(one.execution_id) for one in await _decided(client, several, k, handler_run)]

    wanted = [UUID(name) for name in await handler_run.once(f"{k} of {len(several)} runs", decide)]
    if not {run.id.uuid for run in several}.issuperset(wanted):
        raise RuntimeError("the handler waits for other runs here than in its first run")
    found = {
        one.execution_id: one for one in await handler_run.query(_read(client, several, wanted))
    }
    return [found[one] for one in wanted]


async def _decided(
    client: FlowFabric, several: Sequence[Run[Any]], k: int, handler_run: HandlerRun | None
) -> list[Ending]:
    """Wait until `k` runs have completed, and return their endings in the order in which they
    ended.

    If a run ends without a result, and fewer than `k` runs can then complete, return only the
    ending of that run.
    """
    ids = [run.id for run in several]
    found: list[Ending] | None = []
    while handler_run is not None and found is not None:
        completed = sum(map(_is_complete, found))
        failures = len(found) - completed
        # At least this many runs must still end before there is a decision.
        more = min(k - completed, len(ids) - k + 1 - failures)
        found = await handler_run.wait_for_ends(ids, len(found) + more, client)
        if found is not None and (decided := _decision(sorted(found, key=_by_end), len(ids), k)):
            return decided
    seen: list[Ending] = []
    async with aclosing(endings_of(client, ids, is_patient=False)) as endings:
        async for ending in endings:
            seen.append(ending)
            if decided := _decision(seen, len(ids), k):
                return decided
    raise AssertionError("all runs have ended and nothing was decided")


def _decision(endings: Sequence[Ending], n: int, k: int) -> list[Ending] | None:
    completed: list[Ending] = []
    others = 0
    for ending in endings:
        if _is_complete(ending):
            completed.append(ending)
            if len(completed) == k:
                return completed
        else:
            others += 1
            if others > n - k:
                return [ending]
    return None


async def _cancel_rest(
    client: FlowFabric,
    several: Sequence[Run[Any]],
    decided: Sequence[Ending],
    handler_run: HandlerRun | None,
) -> None:
    """Cancel the runs that have not ended."""
    ended = {one.execution_id for one in decided}
    rest = [run.id.uuid for run in several if run.id.uuid not in ended]
    ended |= {one.execution_id for one in await _read(client, several, rest)}
    open_ = [run for run in several if run.id.uuid not in ended]
    actor = None if handler_run is None else str(handler_run.claimed.id)
    await asyncio.gather(*(run.cancel("not needed any more", actor=actor) for run in open_))


async def _read(
    client: FlowFabric, several: Sequence[Run[Any]], wanted: Sequence[UUID]
) -> list[Ending]:
    by_partition: dict[int, list[UUID]] = {}
    partitions = {run.id.uuid: run.id.partition_key for run in several}
    for uuid in wanted:
        by_partition.setdefault(partitions[uuid], []).append(uuid)
    found: list[Ending] = []
    for partition, uuids in by_partition.items():
        for start in range(0, len(uuids), PAGE):
            page = uuids[start : start + PAGE]
            found += await client.executions.read_results(partition, page)
    return found


def _checked(runs: Iterable[Run[T]], least: int = 1) -> list[Run[T]]:
    if isinstance(runs, Run) or not isinstance(runs, Iterable):
        raise InvalidInput(
            field="runs", problem=f"must be a list of runs, not {type(runs).__name__}"
        )
    several = list(runs)
    for run in several:
        if not isinstance(run, Run):
            raise InvalidInput(field="runs", problem=f"must be runs, not {type(run).__name__}")
    if len({run.id for run in several}) != len(several):
        raise InvalidInput(field="runs", problem="must not contain the same run twice")
    if len(several) < least:
        raise InvalidInput(field="runs", problem="must contain at least one run")
    return several


async def _client(several: Sequence[Run[Any]]) -> FlowFabric:
    for run in several:
        await run.check_exists()
    return await several[0].client()


def _find(several: Sequence[Run[T]], ending: Ending) -> Run[T]:
    return next(run for run in several if run.id.uuid == ending.execution_id)


def _is_complete(ending: Ending) -> bool:
    return ending.public_state is PublicState.COMPLETED


def _by_end(ending: Ending) -> tuple[Any, UUID]:
    return (ending.terminal_at, ending.execution_id)


def _call(several: Sequence[Run[Any]], work: Callable[[], Any], instead: str) -> Any:
    return several[0].call(work, instead)
