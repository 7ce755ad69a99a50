"""Ended: the argument of a hook. It describes the execution that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import Outcome

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedError:
    """The last failure of an execution, as it was stored.

    `type` is the class of the exception with its module, or a word of the engine such as
    `execution_deadline`. `trace` is the traceback; it is None if the engine ended the execution.
    """

    type: str
    message: str
    trace: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Generic[T_co]):
    """How an execution ended. T is the type of its result.

    `arguments` contains the arguments by name, decoded to the types that the task declares. If one
    argument does not fit its type, all are plain JSON. `result` is set if the execution succeeded.
    Otherwise, `error` is its last failure, if any. `reason` says why an execution was cancelled.
    """

    id: ExecutionId
    task: str
    outcome: Outcome
    ended_at: datetime
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    result: T_co = field(default=None, repr=False)  # type: ignore[assignment]
    error: EndedError | None = None
    reason: str | None = None
    attempts: int = 1
    replay_count: int = 0
