"""Grants. A grant reserves an execution for one worker for a short time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import GrantKind

KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Everything that a worker needs to claim the execution that is reserved for it.

    The key is a secret: any process that knows it and the worker's name can use the grant once.
    """

    id: ExecutionId
    kind: GrantKind
    key: bytes = field(repr=False)
    worker_id: str
    expires_at: datetime

    def __post_init__(self) -> None:
        check_key(self.key)


def check_key(key: bytes) -> None:
    if not isinstance(key, bytes):
        raise InvalidInput(field="key", problem=f"must be bytes, not {type(key).__name__}")
    if len(key) != KEY_BYTES:
        raise InvalidInput(field="key", problem=f"must be {KEY_BYTES} bytes, not {len(key)}")
