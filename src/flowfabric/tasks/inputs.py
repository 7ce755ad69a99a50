"""Inputs of a flow's node: arguments that are results of other nodes.

The payload of a node with inputs is JSON with two parts. `arguments` is a plain payload with null
for every result. `inputs` says where each result belongs:

    {"at": ["parts", 0], "of": "load"}     the result of the node `load`
    {"at": ["offer"], "first": 1}          the result of the first node of group 1 to succeed

A worker fills in the results when it starts the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, ValidationError
from pydantic_core import from_json, to_json

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import FlowInput
from flowfabric.core.ids import ExecutionId
from flowfabric.tasks.assignability import (
    element_of,
    is_assignable,
    key_of,
    round_trips,
    type_text,
    union_members,
    value_of,
)
from flowfabric.tasks.codec import codec_for, path_text, problems
from flowfabric.tasks.encoding_error import EncodingError
from flowfabric.tasks.placeholders import Placeholder, leaf_values
from flowfabric.tasks.spec import TaskSpec

INPUTS_ENCODING = "json+inputs"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ArgumentTemplate:
    """The arguments of a node as JSON, and its gaps: where results of other nodes are missing."""

    arguments: dict[str, Any]
    gaps: tuple[Gap, ...]

    def payload(self, source: Callable[[Placeholder], Mapping[str, Any]]) -> bytes:
        """Return the payload: the arguments, and a description of each input that is missing.

        `source` returns the description for a placeholder: which result to insert.
        """
        inputs = [{"at": list(gap.at), **source(gap.value)} for gap in self.gaps]
        return to_json({"arguments": self.arguments, "inputs": inputs})


@dataclass(frozen=True, slots=True)
class Gap:
    """One missing result: its path in the arguments, its placeholder, and the expected type."""

    at: Path
    value: Placeholder
    hint: Any


def make_template(
    spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ArgumentTemplate:
    """Check the arguments of a node, and encode all values that are known already.

    Raises `InvalidInput` if an argument does not match its parameter. The error names the
    parameter. If the argument is the result of another node, the error also names its type and the
    expected type.
    """
    arguments: dict[str, Any] = {}
    gaps: list[Gap] = []
    builder = _TemplateBuilder(spec)
    for name, value in spec.bind(args, kwargs).items():
        arguments[name] = builder.build(value, spec.argument_hint(name), (name,), gaps)
    return ArgumentTemplate(arguments, tuple(gaps))


def encode_argument(spec: TaskSpec, name: str, value: Any) -> Any:
    """Encode an argument that contains no result of a node. Raises `InvalidInput` if the value does
    not match the type of the parameter.
    """
    return _TemplateBuilder(spec).build(value, spec.argument_hint(name), (name,), [])


class _TemplateBuilder:
    """Encodes the arguments of one task, with a `Gap` for each result that is not known yet."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec

    def build(self, value: Any, hint: Any, at: Path, gaps: list[Gap]) -> Any:
        if isinstance(value, Placeholder):
            if not is_assignable(value.hint, hint):
                raise InvalidInput(
                    field=_path_text(at),
                    problem=f"{value.origin} is {type_text(value.hint)}, but {self._spec.name} "
                    f"takes {type_text(hint)} here",
                )
            if not round_trips(value.hint, hint):
                raise InvalidInput(
                    field=_path_text(at),
                    problem=f"{value.origin} is {type_text(value.hint)}, and would change when it "
                    f"is read as {type_text(hint)}: let {self._spec.name} take "
                    f"{type_text(value.hint)} here",
                )
            gaps.append(Gap(at, value, hint))
            return None
        if not any(isinstance(one, Placeholder) for one in leaf_values(value)):
            return self._encode(value, hint, at)
        refusal: InvalidInput | None = None
        for one in union_members(hint):
            found: list[Gap] = []
            try:
                built = self._build_container(value, one, at, found)
            except InvalidInput as error:
                refusal = refusal or error
            else:
                gaps += found
                return built
        assert refusal is not None
        raise refusal

    def _build_container(self, value: Any, hint: Any, at: Path, gaps: list[Gap]) -> Any:
        if isinstance(value, dict):
            built = {}
            for key, one in value.items():
                name = self._key(key, hint, at)
                inner = value_of(hint, name)
                if inner is None:
                    raise self._not_taken(hint, (*at, name))
                built[name] = self.build(one, inner, (*at, name), gaps)
            return built
        several = []
        for index, one in enumerate(value):
            inner = element_of(hint, index, len(value))
            if inner is None:
                raise self._not_taken(hint, at)
            several.append(self.build(one, inner, (*at, index), gaps))
        return several

    def _key(self, key: Any, hint: Any, at: Path) -> str:
        """Return a key as JSON writes it."""
        if isinstance(key, Placeholder):
            raise InvalidInput(
                field=_path_text(at),
                problem=f"{key.origin} is a key here; a result can only be a value",
            )
        taken = key_of(hint)
        if type(key) is str and (taken is str or taken is Any):
            return key
        (name,) = self._encode({key: None}, dict[taken, None], at)  # type: ignore[valid-type]
        return str(name)

    def _not_taken(self, hint: Any, at: Path) -> InvalidInput:
        return InvalidInput(
            field=_path_text(at),
            problem=f"contains the result of another node, but {self._spec.name} takes "
            f"{type_text(hint)} here",
        )

    def _encode(self, value: Any, hint: Any, at: Path) -> Any:
        try:
            codec = codec_for(hint)
            return from_json(codec.write(codec.validated(value)))
        except ValidationError as error:
            texts = [(_path_text((*at, *where)), problem) for where, problem in problems(error)]
            where_text, problem = texts[0]
            problem = "; ".join([problem, *(f"{where}: {one}" for where, one in texts[1:])])
        except EncodingError as unfit:
            where_text, problem = unfit.field(*at), unfit.problem
        except PydanticSchemaGenerationError as error:
            where_text, problem = _path_text(at), f"cannot be written as JSON: {error}"
        # Raise without the cause, because the cause shows the value.
        raise InvalidInput(field=where_text, problem=f"{problem} (argument of {self._spec.name})")


def fill_inputs(payload: bytes | None, inputs: Sequence[FlowInput]) -> bytes:
    """Return a plain payload with the results filled in.

    A result is null if its node completed without a result. It is also null if the node did not
    succeed before its edge group was decided, for example as the loser of a race.
    """
    counted = [one for one in inputs if one.is_counted]
    by_name = {one.node_name: one for one in reversed(counted)}
    by_group = {one.group_no: one for one in reversed(counted)}
    try:
        written = from_json(payload or b"{}")
        for gap in written["inputs"]:
            found = by_group.get(gap["first"]) if "first" in gap else by_name.get(gap["of"])
            if found is not None:
                _put(written["arguments"], gap["at"], _value(found))
        return to_json(written["arguments"])
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidInput(
            field="payload", problem=f"is not valid {INPUTS_ENCODING}: {error}"
        ) from None


def describe_arguments(payload: bytes | None) -> Mapping[str, Any]:
    """Return the arguments of a payload for display, with a name for each missing result."""
    written = from_json(payload or b"{}")
    arguments: dict[str, Any] = written["arguments"]
    for gap in written["inputs"]:
        origin = f"<result of {gap['of']}>" if "of" in gap else "<result of the first>"
        _put(arguments, gap["at"], origin)
    return arguments


def _put(arguments: Any, at: Sequence[str | int], value: Any) -> None:
    *path, last = at
    for one in path:
        arguments = arguments[one]
    arguments[last] = value


def _value(found: FlowInput) -> Any:
    try:
        return from_json(found.result or b"null")
    except ValueError as error:
        raise InvalidInput(
            field="payload", problem=f"the result of {_node_name(found)} is not JSON: {error}"
        ) from None


def _node_name(found: FlowInput) -> str:
    return found.node_name or str(found.upstream_id)


class Inputs:
    """Reads the inputs of nodes. Nodes that start together share a call."""

    def __init__(self, client: FlowFabric) -> None:
        self._client = client
        self._reading: dict[ExecutionId, asyncio.Future[list[FlowInput]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, id: ExecutionId) -> list[FlowInput]:
        """Read the inputs of one node."""
        reading = self._reading.get(id)
        if reading is None:
            reading = self._reading[id] = asyncio.get_running_loop().create_future()
            if len(self._reading) == 1:
                task = asyncio.create_task(self._read_all())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(reading)

    async def _read_all(self) -> None:
        reading, self._reading = self._reading, {}
        found: dict[ExecutionId, list[FlowInput]] = {id: [] for id in reading}
        try:
            for one in await self._client.flows.inputs(list(reading)):
                found[one.execution_id].append(one)
        except Exception as error:
            for future in reading.values():
                if not future.done():
                    future.set_exception(error)
            return
        for id, future in reading.items():
            if not future.done():
                future.set_result(found[id])


def _path_text(at: Sequence[Any]) -> str:
    return path_text(at) or "arguments"
