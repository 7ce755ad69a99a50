"""Joins: waiting for several runs at once, in a handler or outside of one.

In a handler, outside its steps, waiting leaves the worker free: the handler starts again when
enough runs have ended. Which ones came first is recorded, so that every later run of the handler
goes on with the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from flowfabric.app.run import Run
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.execution import Ending
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.handlers.context import Context, asynchronous, running
from flowfabric.handlers.handler_run import Unrepeated
from flowfabric.handlers.waits import MAX_TARGETS

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric

T = TypeVar("T")

# How many results are read in one call.
PAGE = 1000


@asynchronous("gather_sync")
async def gather(runs: Iterable[Run[T]], /) -> list[T]:
    """Wait until all of these have ended, and return their results, in the order of the runs.

    If some did not complete, the error of the one that ended first is raised, as by `Run.result`,
    once all have ended.
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


@asynchronous("first_sync")
async def first(runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> T:
    """Wait until one of these has completed, and return its result.

    With `cancel_rest` the others are cancelled then. If none completes, the error of the one that
    ended last is raised, as by `Run.result`.
    """
    (result,) = await quorum_of(1, runs, cancel_rest=cancel_rest)
    return result


@asynchronous("quorum_of_sync")
async def quorum_of(k: int, runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> list[T]:
    """Wait until `k` of these have completed, and return their results, in the order they ended.

    With `cancel_rest` the others are cancelled then. If so many end otherwise that `k` cannot
    complete any more, the error of the one that made it so is raised, as by `Run.result`, and with
    `cancel_rest` the others are cancelled as well.
    """
    several = _checked(runs)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(field="k", problem="must be a whole number from 1 on")
    if k > len(several):
        raise InvalidInput(field="k", problem=f"is {k}, but there are only {len(several)} runs")
    client = await _client(several)
    context = running.get()
    if context is None or not context.records_for(client):
        endings = await _decided(client, several, k, None)
    else:
        if len(several) > MAX_TARGETS:
            raise InvalidInput(
                field="runs", problem=f"a handler can race at most {MAX_TARGETS} of them"
            )
        endings = await _recorded(context, client, several, k)
    if cancel_rest:
        await _cancel_rest(client, several, endings, context)
    if len(endings) == k and endings[-1].public_state is PublicState.COMPLETED:
        return [_find(several, ending).decode(ending) for ending in endings]
    last = endings[-1]
    try:
        await _find(several, last).conclude(last)
    except FlowFabricError as error:
        error.add_note(
            f"With it, fewer than {k} of {len(several)} runs can complete."
            if len(several) > 1
            else "It was the only run to wait for."
        )
        raise
    raise AssertionError("a run that did not complete raises")


def gather_sync(runs: Iterable[Run[T]], /) -> list[T]:
    """`gather` for synchronous code."""
    several = _checked(runs, least=0)
    return _call(several, lambda: gather(several), "gather(...)") if several else []


def first_sync(runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> T:
    """`first` for synchronous code."""
    several = _checked(runs)
    found: T = _call(several, lambda: first(several, cancel_rest=cancel_rest), "first(...)")
    return found


def quorum_of_sync(k: int, runs: Iterable[Run[T]], /, *, cancel_rest: bool = False) -> list[T]:
    """`quorum_of` for synchronous code."""
    several = _checked(runs)
    work = lambda: quorum_of(k, several, cancel_rest=cancel_rest)  # noqa: E731
    found: list[T] = _call(several, work, "quorum_of(...)")
    return found


async def endings_of(
    client: FlowFabric, ids: Sequence[ExecutionId], *, is_patient: bool = True
) -> AsyncGenerator[Ending, None]:
    """How executions ended, each as soon as it is known; in a handler, which leaves its worker
    free unless it `is_patient` no more than for a time, once all have."""
    if (context := running.get()) is not None:
        all_ = await context.endings_of(ids, len(ids), client) if is_patient else None
        if all_ is not None:
            for ending in sorted(all_, key=_by_end):
                yield ending
            return
        context.waits_here()
    ended: asyncio.Queue[asyncio.Future[Ending]] = asyncio.Queue()
    waiting = [asyncio.ensure_future(client.results.wait(id)) for id in ids]
    for future in waiting:
        future.add_done_callback(ended.put_nowait)
    try:
        left = len(ids)
        while left:
            # What was found together comes in the order in which it ended.
            found = [(await ended.get()).result()]
            while not ended.empty():
                found.append(ended.get_nowait().result())
            left -= len(found)
            for ending in sorted(found, key=_by_end):
                yield ending
    finally:
        for future in waiting:
            future.cancel()


async def _recorded(
    context: Context, client: FlowFabric, several: Sequence[Run[Any]], k: int
) -> list[Ending]:
    """The endings by which a join was decided: for ever those of the first run to see them."""

    async def decide(join: Unrepeated) -> list[str]:
        if join.is_repeated:
            found: list[str] = join.value
            return found
        return [str(one.execution_id) for one in await _decided(client, several, k, context)]

    wanted = [UUID(name) for name in await context.once(f"{k} of {len(several)} runs", decide)]
    if not {run.id.uuid for run in several}.issuperset(wanted):
        raise RuntimeError("the handler joins other runs here than it did in its first run")
    found = {one.execution_id: one for one in await context.ask(_read(client, several, wanted))}
    return [found[one] for one in wanted]


async def _decided(
    client: FlowFabric, several: Sequence[Run[Any]], k: int, context: Context | None
) -> list[Ending]:
    """The endings by which a join is decided: of `k` runs that completed, in the order they did;
    or, if they cannot, of the run that made it so."""
    ids = [run.id for run in several]
    found: list[Ending] | None = []
    while context is not None and found is not None:
        completed = sum(map(_is_complete, found))
        failures = len(found) - completed
        # So many more at least have to end before there is a decision.
        more = min(k - completed, len(ids) - k + 1 - failures)
        found = await context.endings_of(ids, len(found) + more, client)
        if found is not None and (decided := _decision(sorted(found, key=_by_end), len(ids), k)):
            return decided
    seen: list[Ending] = []
    async with aclosing(endings_of(client, ids, is_patient=False)) as endings:
        async for ending in endings:
            seen.append(ending)
            if decided := _decision(seen, len(ids), k):
                return decided
    raise AssertionError("runs that have all ended decide")


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
    context: Context | None,
) -> None:
    """Cancel what has not ended, again if need be: a handler may have crashed before it had."""
    ended = {one.execution_id for one in decided}
    rest = [run.id.uuid for run in several if run.id.uuid not in ended]
    ended |= {one.execution_id for one in await _read(client, several, rest)}
    open_ = [run for run in several if run.id.uuid not in ended]
    actor = None if context is None else str(context.execution_id)
    await asyncio.gather(*(run.cancel("not needed any more", actor=actor) for run in open_))


async def _read(
    client: FlowFabric, several: Sequence[Run[Any]], wanted: Sequence[UUID]
) -> list[Ending]:
    places: dict[int, list[UUID]] = {}
    partitions = {run.id.uuid: run.id.partition_key for run in several}
    for uuid in wanted:
        places.setdefault(partitions[uuid], []).append(uuid)
    found: list[Ending] = []
    for partition, uuids in places.items():
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
        raise InvalidInput(field="runs", problem="one of them is given twice")
    if len(several) < least:
        raise InvalidInput(field="runs", problem="must be at least one")
    return several


async def _client(several: Sequence[Run[Any]]) -> FlowFabric:
    for run in several:
        await run.look()
    return await several[0].client()


def _find(several: Sequence[Run[T]], ending: Ending) -> Run[T]:
    return next(run for run in several if run.id.uuid == ending.execution_id)


def _is_complete(ending: Ending) -> bool:
    return ending.public_state is PublicState.COMPLETED


def _by_end(ending: Ending) -> tuple[Any, UUID]:
    return (ending.terminal_at, ending.execution_id)


def _call(several: Sequence[Run[Any]], work: Callable[[], Any], instead: str) -> Any:
    return several[0].call(work, instead)
