"""Turn the arrays in the answer of a claim into one record for each execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core.execution import Claimed
from flowfabric.db.functions import CLAIM_EXECUTIONS
from flowfabric.db.records import array_reader

T = TypeVar("T")


def waits_of(
    claimed: Iterable[Claimed], lease_ttl: timedelta
) -> Mapping[tuple[str, str], Sequence[float]]:
    """Return how many seconds passed from the submit of each execution to its first claim.

    The result maps a task and a lane to the seconds of their executions. Executions that were
    claimed before are left out. `lease_ttl` is the ttl of the claim.
    """
    waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in claimed:
        if one.claim_kind == "fresh" and one.attempt_type == "initial":
            # With a fair key, order_at is a turn, not the time of the submit. It may be later than
            # the claim, so cut off waits below zero.
            wait = one.lease_expires_at - lease_ttl - one.order_at
            waits[one.task, one.lane].append(max(wait.total_seconds(), 0.0))
    return waits


def _each(usual: T) -> Callable[[Sequence[T] | None], Iterable[T]]:
    """Return a function that turns an array into its values.

    If the array is None, the function repeats the value `usual` without end.
    """
    return lambda values: repeat(usual) if values is None else values


def _each_or(values: Sequence[T] | None, usual: T) -> Iterable[T]:
    return repeat(usual) if values is None else values


def _of_routes(names: Sequence[Any], route_nos: Sequence[int] | None) -> Iterable[Any]:
    return repeat(names[0]) if route_nos is None else [names[no - 1] for no in route_nos]


def _attempts(indexes: Sequence[int] | None) -> Iterable[int]:
    return repeat(1) if indexes is None else [index + 1 for index in indexes]


def _lease_ends(ends: Sequence[T], ids: Sequence[UUID]) -> Iterable[T]:
    return ends if len(ends) == len(ids) else repeat(ends[0])


# Build the records of one claim, in the order of the claim. An array that is null means that every
# execution has the usual value (`ff.claim_executions` lists the usual values).
claimed_of = array_reader(
    Claimed,
    CLAIM_EXECUTIONS,
    given="partition_key lease_id",
    namespace=(_of_routes, "namespaces route_nos"),
    lane=(_of_routes, "lanes route_nos"),
    task=(_of_routes, "tasks route_nos"),
    claim_kind=(_each("fresh"), "claim_kinds"),
    epoch=(_each(1), "epochs"),
    attempt=(_attempts, "attempt_indexes"),
    attempt_id=(_each_or, "attempt_ids lease_id"),
    attempt_type=(_each("initial"), "attempt_types"),
    lease_expires_at=(_lease_ends, "lease_expires_ats execution_ids"),
    attempt_deadline_at=(_each(None), "attempt_deadline_ats"),
    deadline_at=(_each(None), "deadline_ats"),
    retry_count=(_each(0), "retry_counts"),
    payload_encoding=(_each(None), "payload_encodings"),
    replay_count=(_each(0), "replay_counts"),
    trace_context=(_each(None), "trace_contexts"),
    crash_count=(_each(0), "crash_counts"),
    generation=(_each(0), "generations"),
)
