"""Quotas: read and change the limits on how many executions run and start. Take slots of quotas for
work outside executions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any, TypeAlias
from uuid import UUID

from flowfabric.client.addresses import Scoped
from flowfabric.client.outcomes import handle_batch
from flowfabric.client.partitions import ask_reachable
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import InvalidInput, LimitReached, QuotaNotFound, Unavailable
from flowfabric.core.ids import uuid7
from flowfabric.core.limit import Limit, Rate, check_limit_name, check_whole_number
from flowfabric.core.partition import Found
from flowfabric.core.quota import Admission, GateInfo, QuotaChange, QuotaInfo
from flowfabric.core.states import Overflow
from flowfabric.db import functions
from flowfabric.db.records import reader

# Defined here because, inside the class, `list` is the method `Quotas.list`.
QuotaList: TypeAlias = list[QuotaInfo]
GateList: TypeAlias = Found[GateInfo]

_info = reader(QuotaInfo, functions.LIST_QUOTAS, overflow=Overflow)
_gate = reader(GateInfo, functions.LIST_GATES, unread="whole_concurrency whole_rate")
_changed = reader(QuotaChange, functions.SET_QUOTA)
_lifted = reader(QuotaChange, functions.LIFT_QUOTA)
_admission = reader(Admission, functions.CHECK_ADMISSION)

# The partition of all tickets.
_TICKETS_IN = 0
_LEAST_PAUSE_SECONDS = 0.05
_MOST_PAUSE_SECONDS = 1.0


class Quotas(Scoped):
    """Operations on quotas."""

    async def create(self, limit: Limit, *, actor: str | None = None) -> bool:
        """Create a quota. If a quota of this name exists, return False and change nothing."""
        rate = limit.parsed_rate
        rows = await self._database.call(
            functions.CREATE_QUOTA,
            namespace=self._own(),
            quota=limit.name,
            is_keyed=limit.is_keyed,
            concurrency=limit.concurrency,
            rate=None if rate is None else rate.number,
            rate_window=None if rate is None else rate.window,
            overflow=str(limit.overflow),
            actor=actor,
        )
        return bool(rows[0]["outcome"] == "created")

    async def list(self, *, after: str | None = None, limit: int = 1000) -> QuotaList:
        """List quotas in byte order of their names. Begin with the first name after `after`."""
        return await self._list(None, after, limit)

    async def get(self, quota: str) -> QuotaInfo:
        """Return one quota; raise QuotaNotFound if there is no quota of this name."""
        check_limit_name("quota", quota)
        found = await self._list(quota, None, 2)
        if not found:
            raise QuotaNotFound.explained({"quota": quota})
        if len(found) > 1:
            raise InvalidInput(
                field="namespace",
                problem=f"must be given: several namespaces have the quota {quota}",
            )
        return found[0]

    async def gates(
        self,
        quota: str,
        *,
        key: str | None = None,
        after: str | None = None,
        limit: int = 100,
        partition: int | None = None,
    ) -> GateList:
        """List the gates of a quota, sorted by key. A gate has the counters of one key.

        The counters say how many executions run and how many wait, in all partitions together.
        `missing` names partitions that did not answer. If `partition` is given, the list has the
        counters of that partition and its shares of the limits.
        """
        check_limit_name("quota", quota)

        async def read(one: int) -> Sequence[Any]:
            rows = await self._database.call(
                functions.LIST_GATES,
                partition_key=one,
                namespace=self._own(),
                quota=quota,
                key=key,
                after=after,
                limit=limit,
            )
            return list(rows)

        if partition is not None:
            return Found(_gate(row) for row in await read(partition))
        pages, missing = await ask_reachable(await self._database.partitions.all(), read)
        gates: dict[str, GateInfo] = {}
        for row in (row for page in pages for row in page):
            gate = replace(_gate(row), concurrency=row["whole_concurrency"], rate=row["whole_rate"])
            known = gates.get(gate.key)
            gates[gate.key] = gate if known is None else known.plus(gate)
        ordered = sorted(gates.values(), key=lambda one: one.key)
        return Found(ordered[:limit], missing)

    async def set(
        self,
        quota: str,
        *,
        key: str | None = None,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
        clear: Sequence[str] = (),
        reason: str | None = None,
        actor: str | None = None,
    ) -> QuotaChange:
        """Set the limits of a quota: its concurrency and its rate, for one key or for all keys.

        The new limits override the declared limits until `lift` is called. None leaves a limit
        unchanged. `clear` names the limits to remove: concurrency, rate.
        """
        check_limit_name("quota", quota)
        if concurrency is not None:
            check_whole_number("concurrency", concurrency)
        parsed = rate if rate is None or isinstance(rate, Rate) else Rate.parse(rate)
        rows = await self._database.call(
            functions.SET_QUOTA,
            namespace=self._own(),
            quota=quota,
            key=key,
            concurrency=concurrency,
            rate=None if parsed is None else parsed.number,
            rate_window=None if parsed is None else parsed.window,
            clear=[*clear],
            reason=reason,
            actor=actor,
        )
        return _changed(rows[0])

    async def lift(
        self,
        quota: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> QuotaChange:
        """Remove the limits that an operator set, for one key or for all keys.

        If `key` is given, the limits for all keys apply to this key again. Otherwise the declared
        limits apply again, and limits that an operator set for single keys stay.
        """
        check_limit_name("quota", quota)
        rows = await self._database.call(
            functions.LIFT_QUOTA,
            namespace=self._own(),
            quota=quota,
            key=key,
            reason=reason,
            actor=actor,
        )
        return _lifted(rows[0])

    async def delete(
        self, quota: str, *, reason: str | None = None, actor: str | None = None
    ) -> bool:
        """Delete a quota, so that it limits nothing. Return False if there is no such quota."""
        check_limit_name("quota", quota)
        rows = await self._database.call(
            functions.DELETE_QUOTA,
            namespace=self._own(),
            quota=quota,
            reason=reason,
            actor=actor,
        )
        return bool(rows[0]["outcome"] == "deleted")

    async def check_admission(
        self,
        quota: str,
        *,
        key: str | None = None,
        ttl: timedelta = timedelta(minutes=1),
        ticket_id: UUID | None = None,
    ) -> tuple[Admission, UUID]:
        """Take a slot of a quota for work outside an execution, if there is room.

        The answer says whether the call took a slot. The id of the ticket is returned, too. The
        slot counts like a running execution until `release_admission` is called, or until `ttl` is
        over. A repeat with the same `ticket_id` takes no second slot and does not extend the time.

        All tickets are in partition 0. If the share of partition 0 is used up, the call moves
        unused shares of other partitions to partition 0 and tries again.
        """
        check_limit_name("quota", quota)
        ticket_id = ticket_id or uuid7()
        answer = await self._ask_admission(quota, key, ticket_id, ttl)
        if answer.is_admitted or len(await self._database.partitions.all()) == 1:
            return answer, ticket_id
        # If a partition cannot be reached, no share can be moved. Then the first answer counts.
        with suppress(Unavailable):
            # The first `balance` takes unused shares away; the second gives them to partition 0.
            # `balance` moves shares only for a gate that has refused a call after the last
            # `balance`, so ask again in between.
            for _ in range(2):
                handled, _ = await self.balance()
                if not handled:
                    break
                answer = await self._ask_admission(quota, key, ticket_id, ttl)
        return answer, ticket_id

    async def _ask_admission(
        self, quota: str, key: str | None, ticket_id: UUID, ttl: timedelta
    ) -> Admission:
        rows = await self._database.call(
            functions.CHECK_ADMISSION,
            partition_key=_TICKETS_IN,
            namespace=self._own(),
            quota=quota,
            key=key,
            ticket_id=ticket_id,
            ttl=ttl,
        )
        return _admission(rows[0])

    async def release_admission(
        self,
        quota: str,
        ticket_id: UUID,
        *,
        key: str | None = None,
        is_unused: bool = False,
    ) -> None:
        """Give back a slot that `check_admission` took. A repeat changes nothing.

        `is_unused` says that the slot was never used, so that it does not count as a start.
        """
        check_limit_name("quota", quota)
        await self._database.call(
            functions.RELEASE_ADMISSION,
            partition_key=_TICKETS_IN,
            namespace=self._own(),
            quota=quota,
            key=key,
            ticket_id=ticket_id,
            is_unused=is_unused,
        )

    async def sweep(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Bring gates and lines up to date.

        End expired tickets, count released slots as free, and open the lines of gates that have
        room. Return how many rows were handled, and the time until the next call.
        """
        return await handle_everywhere(
            self._database, functions.SWEEP_GATES, Due.GATE, partition=partition, limit=limit
        )

    async def balance(self, *, limit: int = 100) -> tuple[int, timedelta | None]:
        """Move unused shares of limits to the partitions in which executions wait.

        Return how many gates changed, and the time until the next call. If this call took shares
        away, the time is 0: the next call gives them to the partitions in which executions wait.
        """
        return await handle_batch(self._database, functions.BALANCE_GATES, limit=limit)

    @asynccontextmanager
    async def admitted(
        self,
        quota: str,
        *,
        key: str | None = None,
        ttl: timedelta = timedelta(minutes=1),
        max_wait: timedelta = timedelta(0),
    ) -> AsyncIterator[Admission]:
        """Take a slot of a quota, and release the slot at the end of the `async with` block.

        Use it as `async with client.quotas.admitted("api"):`. If the quota has no room, the call
        waits up to `max_wait`, then raises LimitReached. The block must end within `ttl`, because
        after this time other callers can take the slot.
        """
        deadline = monotonic() + max_wait.total_seconds()
        pause = _LEAST_PAUSE_SECONDS
        ticket_id = uuid7()
        while True:
            answer, _ = await self.check_admission(quota, key=key, ttl=ttl, ticket_id=ticket_id)
            if answer.is_admitted:
                break
            left = deadline - monotonic()
            if left <= 0:
                raise LimitReached.explained(
                    {"quota": quota, "key": key, "retry_at": answer.retry_at}
                )
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _MOST_PAUSE_SECONDS)
        try:
            yield answer
        finally:
            await self.release_admission(quota, ticket_id, key=key)

    async def _list(self, quota: str | None, after: str | None, limit: int) -> QuotaList:
        rows = await self._database.call(
            functions.LIST_QUOTAS,
            namespace=self._namespace,
            quota=quota,
            after=after,
            after_namespace=None,
            limit=limit,
        )
        return [_info(row) for row in rows]

    def _own(self) -> str:
        """Return the namespace of the client. Refuse a client that is for all namespaces."""
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="must be given: a quota belongs to one namespace"
            )
        return self._namespace
