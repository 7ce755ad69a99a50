"""Turn the answer of a claim, which has arrays, into one record for each execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core.execution import Claimed

T = TypeVar("T")


def claimed_of(row: Any, partition: int, claim_id: UUID) -> list[Claimed]:
    """Build the records of one claim, in the order of the claim.

    The row is read by position. An array that is null means that every execution has the usual
    value (`ff.claim_executions` lists the usual values).
    """
    ids, route_nos, namespaces, lanes, tasks, kinds, ranks, order_ats, epochs, indexes = row[:10]
    attempt_ids, attempt_types, lease_ends, attempt_ends, deadlines, retries = row[10:16]
    encodings, payloads, replays, traces, crashes, generations = row[16:]
    attempts = repeat(1) if indexes is None else [index + 1 for index in indexes]
    # Use map, which is fast: a worker builds one record for every execution.
    return list(
        map(
            Claimed,
            ids,
            _of_routes(namespaces, route_nos),
            _of_routes(lanes, route_nos),
            _of_routes(tasks, route_nos),
            _each(kinds, "fresh"),
            ranks,
            order_ats,
            _each(epochs, 1),
            attempts,
            _each(attempt_ids, claim_id),
            _each(attempt_types, "initial"),
            lease_ends if len(lease_ends) == len(ids) else repeat(lease_ends[0]),
            _each(attempt_ends, None),
            _each(deadlines, None),
            _each(retries, 0),
            _each(encodings, None),
            payloads,
            _each(replays, 0),
            _each(traces, None),
            _each(crashes, 0),
            _each(generations, 0),
            repeat(partition),
            repeat(claim_id),
        )
    )


def waits_of(
    claimed: Iterable[Claimed], lease_ttl: timedelta
) -> Mapping[tuple[str, str], Sequence[float]]:
    """Return by task and lane how many seconds executions waited from submit to their first claim.

    Later claims are left out: the answer does not say when a retry became ready.
    """
    waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in claimed:
        if one.claim_kind == "fresh" and one.attempt_type == "initial":
            # With a fair key, order_at is a turn, not the time of the submit. It may be later than
            # the claim, so cut off waits below zero.
            wait = one.lease_expires_at - lease_ttl - one.order_at
            waits[one.task, one.lane].append(max(wait.total_seconds(), 0.0))
    return waits


def _each(values: Sequence[T] | None, usual: T) -> Iterable[T]:
    return repeat(usual) if values is None else values


def _of_routes(names: Sequence[Any], route_nos: Sequence[int] | None) -> Iterable[Any]:
    return repeat(names[0]) if route_nos is None else [names[no - 1] for no in route_nos]
