"""Build the arguments that address an execution, a flow or a lease in a call of the engine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypedDict, TypeVar
from uuid import UUID

from flowfabric.client.partitions import ask_reachable, within_time
from flowfabric.core.errors import ExecutionNotFound, FlowNotFound, InvalidInput, Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import (
    AnyId,
    ExecutionId,
    FlowId,
    PartitionedId,
    bare_uuid,
    is_suffix,
    noun_of,
    partition_of,
)
from flowfabric.db import functions
from flowfabric.db.session import Database

# A search by the last digits of a UUID covers this many of the newest executions and flows.
SEARCHED = 10_000

Id = TypeVar("Id", bound=PartitionedId)


@dataclass(frozen=True, slots=True)
class Found(Generic[Id]):
    """An execution or a flow that a search found.

    `name` is the task of an execution or the kind of a flow.
    """

    id: Id
    name: str
    state: str | None
    created_at: datetime

    def __str__(self) -> str:
        facts = " ".join(filter(None, (self.name, self.state)))
        return f"{self.id.uuid} ({facts}, {self.created_at:%Y-%m-%d %H:%M:%S})"


class Scoped:
    """Base class of the parts of the client, such as `Executions` and `Lanes`.

    A part keeps the database and the namespace of its client (None: all namespaces).
    """

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace

    async def _execution(self, id: AnyId) -> ExecutionId:
        """Return the whole id of an execution. `id` can be a whole id, a text or a UUID."""
        return id if isinstance(id, ExecutionId) else await self._locate(ExecutionId, id)

    async def _flow(self, id: AnyId) -> FlowId:
        """Return the whole id of a flow. `id` can be a whole id, a text or a UUID."""
        return id if isinstance(id, FlowId) else await self._locate(FlowId, id)

    async def _locate(self, kind: type[Id], id: AnyId) -> Id:
        """Return the whole id for a text or a UUID. A UUID without a partition is searched in all
        partitions; if it is not found, the whole id has partition 0."""
        if isinstance(id, PartitionedId):
            wanted = "a FlowId" if issubclass(kind, FlowId) else "an ExecutionId"
            raise InvalidInput(field="id", problem=f"must be {wanted}, not {type(id).__name__}")
        if not isinstance(id, UUID) and bare_uuid(id) is None:
            return kind.parse(id)
        uuid = kind.parse(f"{{fp:0}}:{id}").uuid
        found = await self._search(kind, uuid.hex)
        return found[0].id if found else kind.of(0, uuid)

    async def _find_id(self, kind: type[Id], text: AnyId) -> Id:
        """Return the whole id for a text: a whole id, a UUID, or the last digits of a UUID.

        Last digits are searched among the newest executions or flows of each partition.
        """
        if isinstance(text, kind):
            return text
        if not isinstance(text, str) or not is_suffix(text):
            return await self._locate(kind, text)
        found = await self._search(kind, text)
        if not found:
            raise (ExecutionNotFound if kind is ExecutionId else FlowNotFound)(
                f"No {noun_of(kind)} among the newest {SEARCHED} ends with {text}; "
                "give its whole id.",
                id=text,
            )
        if len(found) > 1:
            raise InvalidInput(
                f"{text} is the end of several ids, newest first: "
                f"{', '.join(map(str, found))}; give more digits.",
                field="id",
                matches=[one.id for one in found],
            )
        return found[0].id

    async def _search(self, kind: type[Id], text: str) -> list[Found[Id]]:
        """Search all partitions for executions or flows whose UUID ends with `text`."""

        async def search(partition: int) -> list[Found[Id]]:
            *rows, _ = await self._database.call(
                functions.FIND_IDS,
                partition_key=partition,
                namespace=self._namespace,
                text=text,
            )
            return [
                Found(kind.of(partition, row["id"]), row["name"], row["state"], row["created_at"])
                for row in rows
                if row["kind"] == noun_of(kind)
            ]

        wanted = list(await self._database.partitions.all())
        if not is_suffix(text) and len(wanted) > 1:
            # Search this partition first: the bytes of most ids determine their partition.
            likely = partition_of(UUID(text).bytes, self._database.partitions.numbers.minted)
            with contextlib.suppress(Unavailable):
                if first := await within_time(likely, len(wanted), search(likely)):
                    return first
                wanted.remove(likely)
        answers, missing = await ask_reachable(wanted, search)
        found = [one for answer in answers for one in answer]
        if missing and (not found or is_suffix(text)):
            raise Unavailable(
                f"Not all partitions could be searched for {text}: no answer from "
                f"{', '.join(map(str, missing))}.",
                partitions=missing,
            )
        return sorted(found, key=lambda one: one.created_at, reverse=True)


class Address(TypedDict):
    """The arguments of an engine function that identify one execution."""

    partition_key: int
    namespace: str | None
    execution_id: UUID


class FlowAddress(TypedDict):
    """The arguments of an engine function that identify one flow."""

    partition_key: int
    namespace: str | None
    flow_id: UUID


class LeaseAddress(TypedDict):
    """The arguments of an engine function that identify one execution and show its fence."""

    partition_key: int
    namespace: str | None
    execution_id: UUID
    lease_id: UUID
    epoch: int
    attempt_id: UUID


class LeaseAddresses(TypedDict):
    """The arguments that identify executions of one partition and show their fences."""

    partition_key: int
    namespace: str | None
    execution_ids: list[UUID]
    lease_ids: list[UUID]
    epochs: list[int]
    attempt_ids: list[UUID]


def address(id: ExecutionId, namespace: str | None) -> Address:
    partition, uuid = location(id)
    return Address(partition_key=partition, namespace=namespace, execution_id=uuid)


def flow_address(id: FlowId, namespace: str | None) -> FlowAddress:
    partition, uuid = flow_location(id)
    return FlowAddress(partition_key=partition, namespace=namespace, flow_id=uuid)


def lease_address(claimed: Claimed, namespace: str | None) -> LeaseAddress:
    return LeaseAddress(
        partition_key=claimed.partition_key,
        namespace=namespace,
        execution_id=claimed.execution_id,
        lease_id=claimed.lease_id,
        epoch=claimed.epoch,
        attempt_id=claimed.attempt_id,
    )


def lease_addresses(leases: list[Claimed], namespace: str | None) -> LeaseAddresses:
    return LeaseAddresses(
        partition_key=leases[0].partition_key,
        namespace=namespace,
        execution_ids=[one.execution_id for one in leases],
        lease_ids=[one.lease_id for one in leases],
        epochs=[one.epoch for one in leases],
        attempt_ids=[one.attempt_id for one in leases],
    )


def location(id: ExecutionId) -> tuple[int, UUID]:
    """Return the partition and the UUID of an execution.

    Raise InvalidInput if `id` is not an ExecutionId.
    """
    if not isinstance(id, ExecutionId):
        raise InvalidInput(
            field="id",
            problem=f"must be an ExecutionId, not {type(id).__name__}; "
            "`await client.executions.find(text)` makes one",
        )
    return id.partition_key, id.uuid


def flow_location(id: FlowId) -> tuple[int, UUID]:
    """Return the partition and the UUID of a flow.

    Raise InvalidInput if `id` is not a FlowId.
    """
    if not isinstance(id, FlowId):
        raise InvalidInput(
            field="id",
            problem=f"must be a FlowId, not {type(id).__name__}; "
            "`await client.flows.find(text)` makes one",
        )
    return id.partition_key, id.uuid
