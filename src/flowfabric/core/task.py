"""Tasks as the registry of the database knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# The size of the largest schema that the registry stores.
MAX_SCHEMA_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class TaskName:
    """The name of a task that an app has registered or somebody has submitted.

    `is_registered` says whether an app has registered the task. `is_limited` says whether the task
    has a quota or a budget.
    """

    task: str
    is_registered: bool
    is_limited: bool


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task as its app registered it.

    `arguments` and `result` are JSON Schemas, or None if unknown. Each of the `limits` has these
    fields: `kind` (quota or budget), `name`, `is_keyed` (whether the limit has a key) and
    `argument` (the argument that is the key, or null).
    """

    namespace: str
    task: str
    version: str | None
    arguments: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    limits: Sequence[Mapping[str, Any]]
    lanes: Sequence[str]
    app_version: Sequence[int]
    registered_at: datetime
    changed_at: datetime
    # The JSON Schemas of the signals that it takes, by name; None if it has not declared them.
    signals: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclaration:
    """One task, as an app declares it. A schema that is None leaves the stored schema unchanged."""

    task: str
    version: str | None = None
    arguments: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    limits: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    # The signals that it takes, with the JSON Schema of each value or None for any.
    signals: Mapping[str, Any] | None = None
