"""Build the arguments that address an execution, a flow or a lease in a call of the engine."""

from __future__ import annotations

from typing import TypedDict
from uuid import UUID

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.db.session import Database


class Scoped:
    """Base of the client's nouns: one database, and one namespace or (None) all namespaces."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace


class Address(TypedDict):
    """Arguments that identify one execution."""

    partition_key: int
    namespace: str | None
    execution_id: UUID


class FlowAddress(TypedDict):
    """Arguments that identify one flow."""

    partition_key: int
    namespace: str | None
    flow_id: UUID


class LeaseAddress(TypedDict):
    """Arguments that identify one execution, with the fence of its lease."""

    partition_key: int
    namespace: str | None
    execution_id: UUID
    lease_id: UUID
    epoch: int
    attempt_id: UUID


class LeaseAddresses(TypedDict):
    """Arguments that identify executions of one partition, with the fences of their leases."""

    partition_key: int
    namespace: str | None
    execution_ids: list[UUID]
    lease_ids: list[UUID]
    epochs: list[int]
    attempt_ids: list[UUID]


def address(id: ExecutionId, namespace: str | None) -> Address:
    partition, uuid = place(id)
    return Address(partition_key=partition, namespace=namespace, execution_id=uuid)


def flow_address(id: FlowId, namespace: str | None) -> FlowAddress:
    partition, uuid = flow_place(id)
    return FlowAddress(partition_key=partition, namespace=namespace, flow_id=uuid)


def lease_address(held: Claimed, namespace: str | None) -> LeaseAddress:
    return LeaseAddress(
        partition_key=held.partition_key,
        namespace=namespace,
        execution_id=held.execution_id,
        lease_id=held.lease_id,
        epoch=held.epoch,
        attempt_id=held.attempt_id,
    )


def lease_addresses(held: list[Claimed], namespace: str | None) -> LeaseAddresses:
    return LeaseAddresses(
        partition_key=held[0].partition_key,
        namespace=namespace,
        execution_ids=[claimed.execution_id for claimed in held],
        lease_ids=[claimed.lease_id for claimed in held],
        epochs=[claimed.epoch for claimed in held],
        attempt_ids=[claimed.attempt_id for claimed in held],
    )


def place(id: ExecutionId) -> tuple[int, UUID]:
    """Return partition and uuid of an execution; raise InvalidInput unless `id` is an id."""
    if not isinstance(id, ExecutionId):
        raise InvalidInput(
            field="id",
            problem=f"must be an ExecutionId, not {type(id).__name__}; "
            "ExecutionId.parse(text) makes one",
        )
    return id.partition_key, id.uuid


def flow_place(id: FlowId) -> tuple[int, UUID]:
    """Return partition and uuid of a flow; raise InvalidInput unless `id` is a flow's id."""
    if not isinstance(id, FlowId):
        raise InvalidInput(
            field="id",
            problem=f"must be a FlowId, not {type(id).__name__}; FlowId.parse(text) makes one",
        )
    return id.partition_key, id.uuid
