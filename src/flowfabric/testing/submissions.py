"""The submissions of a test, and a comparison with the expected submissions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from flowfabric.app.task import Options, Task
from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.tasks import INPUTS_ENCODING, describe_arguments, encode_argument

_COMPARED = ("lane", "priority", "key", "tags", "delay", "delayed_until")
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One execution as submitted.

    `arguments` is the stored JSON. If an argument is the result of another node of a flow, the JSON
    names that node in its place.
    """

    id: ExecutionId
    task: str
    arguments: Mapping[str, Any]
    lane: str
    priority: int
    key: str | None
    tags: Mapping[str, str]
    created_at: datetime
    delayed_until: datetime | None
    state: PublicState
    has_inputs: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Submitted:
        has_inputs = row["payload_encoding"] == INPUTS_ENCODING
        payload = row["payload"]
        return cls(
            id=ExecutionId.of(row["partition_key"], row["execution_id"]),
            task=row["task"],
            arguments=describe_arguments(payload) if has_inputs else _object(payload),
            has_inputs=has_inputs,
            lane=row["lane"],
            priority=row["priority"],
            key=row["key"],
            tags=json.loads(row["tags"] or "{}"),
            created_at=row["created_at"],
            delayed_until=row["delayed_until"],
            state=PublicState(row["public_state"]),
        )

    def __str__(self) -> str:
        return call(self.task, self.arguments)


class Expectation:
    """A submission that a test expects: a task, some of its arguments, and options of `using`."""

    def __init__(
        self, task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._spec = task.spec
        try:
            self._arguments = dict(self._spec.signature.bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidInput(
                field=f"arguments of {self._spec.name}", problem=str(error)
            ) from error
        self._options = {
            field.name: value
            for field in fields(Options)
            if (value := getattr(task.options, field.name)) != field.default
        }
        if unknown := self._options.keys() - set(_COMPARED):
            raise InvalidInput(
                field="task",
                problem=f"cannot compare {', '.join(sorted(unknown))}; only "
                f"{', '.join(_COMPARED)} are recorded",
            )

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        text = call(self._spec.name, self._arguments) if self._arguments else self._spec.name
        return f"{text} with {options}" if options else text

    def is_task(self, found: Submitted) -> bool:
        return found.task == self._spec.name

    def fits(self, found: Submitted) -> bool:
        return self.is_task(found) and self._fits_arguments(found) and self._fits_options(found)

    def _fits_arguments(self, found: Submitted) -> bool:
        if not self._arguments:
            return True
        if found.has_inputs:
            return all(
                found.arguments.get(name) == encode_argument(self._spec, name, value)
                for name, value in self._arguments.items()
            )
        try:
            stored = self._stored(found.arguments)
        except InvalidInput:
            return False  # the submission has other parameters
        return bool(self._stored({**found.arguments, **self._arguments}) == stored)

    def _stored(self, arguments: Mapping[str, Any]) -> Any:
        """Return the stored form of these arguments, with defaults filled in."""
        signature = self._spec.signature
        given = {
            name: arguments.get(name, parameter.default)
            for name, parameter in signature.parameters.items()
            if name in arguments or parameter.default is not inspect.Parameter.empty
        }
        bound = inspect.BoundArguments(signature, given)
        return json.loads(self._spec.encode(bound.args, bound.kwargs))

    def _fits_options(self, found: Submitted) -> bool:
        for name, value in self._options.items():
            if name == "tags":
                if not value.items() <= found.tags.items():
                    return False
            elif name == "delay":
                if found.delayed_until is None or found.delayed_until != found.created_at + value:
                    return False
            elif getattr(found, name) != value:
                return False
        return True

    def message(self, submitted: list[Submitted], times: int | None) -> str:
        """Return a message with the expected and the actual submissions. Submissions of the
        expected task come first.
        """
        count = sum(map(self.fits, submitted))
        wanted = "at least once" if times is None else _times(times)
        lines = [f"{self} should have been submitted {wanted}, and was {_times(count)}."]
        same = [submission for submission in submitted if self.is_task(submission)]
        other = [submission for submission in submitted if not self.is_task(submission)]
        lines += _list("Submissions of this task:", same) if same else []
        lines += _list("Submissions of other tasks:", other) if other else []
        if not submitted:
            lines.append("Nothing was submitted.")
        return "\n".join(lines)


def call(task: str, arguments: Mapping[str, Any]) -> str:
    return f"{task}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _list(title: str, submitted: list[Submitted]) -> list[str]:
    lines = [title]
    for submission in submitted[:_SHOWN]:
        facts = [str(submission.state), f"lane {submission.lane}"]
        facts += [f"priority {submission.priority}"]
        facts += [f"key {submission.key}"] if submission.key else []
        facts += [f"tags {dict(submission.tags)}"] if submission.tags else []
        if submission.delayed_until is not None:
            facts.append(f"delayed by {submission.delayed_until - submission.created_at}")
        lines.append(f"  {submission}: {', '.join(facts)}")
    if len(submitted) > _SHOWN:
        lines.append(f"  ... and {len(submitted) - _SHOWN} more")
    return lines


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _object(payload: bytes | None) -> Mapping[str, Any]:
    try:
        found = json.loads(payload or b"{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"payload": payload}
