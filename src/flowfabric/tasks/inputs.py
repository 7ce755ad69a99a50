"""Arguments that are the results of other nodes of a flow: how they are written down when the flow
is stored, and filled in when a worker starts the node.

The payload of such a node is JSON with two parts. `arguments` are those of a plain payload, with
null wherever a result belongs; `inputs` says which belongs where:

    {"at": ["parts", 0], "of": "load"}     the result of the node `load`
    {"at": ["offer"], "first": 1}          that of the first to succeed among group 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import PydanticSchemaGenerationError, ValidationError
from pydantic_core import from_json, to_json

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import FlowInput
from flowfabric.core.ids import ExecutionId
from flowfabric.tasks.assignability import (
    carries,
    element_of,
    fits,
    key_of,
    members,
    shown,
    value_of,
)
from flowfabric.tasks.codec import codec_for, first_problem
from flowfabric.tasks.encoding_error import EncodingError
from flowfabric.tasks.spec import TaskSpec

ENCODING = "json+inputs"

Path = tuple[str | int, ...]


class Placeholder:
    """Stands for a value that is there only when the flow has run so far.

    `hint` is the type of the value, `giver` says in words where it comes from.
    """

    __slots__ = ("giver", "hint")

    def __init__(self, giver: str, hint: Any) -> None:
        self.giver = giver
        self.hint = hint

    def __repr__(self) -> str:
        return f"<{self.giver}>"

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self.giver} is not known before the flow runs: it can be passed to another node, "
            "by itself or in a list, tuple, set or dict, and nothing else"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._unknown()

    __bool__ = __iter__ = __len__ = __getitem__ = __call__ = __contains__ = _unknown
    __str__ = __format__ = __int__ = __float__ = __index__ = __await__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _unknown
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Woven:
    """The arguments of a node: as JSON with gaps, and what belongs into the gaps."""

    arguments: dict[str, Any]
    gaps: tuple[Gap, ...]

    def payload(self, source: Callable[[Placeholder], Mapping[str, Any]]) -> bytes:
        """The payload; `source` says for every gap what fills it."""
        inputs = [{"at": list(gap.at), **source(gap.value)} for gap in self.gaps]
        return to_json({"arguments": self.arguments, "inputs": inputs})


@dataclass(frozen=True, slots=True)
class Gap:
    """A place among the arguments, what belongs there, and what the parameter takes there."""

    at: Path
    value: Placeholder
    hint: Any


def leaves(value: Any) -> Iterator[Any]:
    """What is inside lists, tuples, sets and dicts; anything else is one by itself."""
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from leaves(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if isinstance(key, Placeholder):
                yield key
            yield from leaves(one)
    else:
        yield value


def weave(spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Woven:
    """Check the arguments of a node and write down what is known of them; `InvalidInput` names the
    parameter, and for a result the type it has and the one that is taken."""
    arguments: dict[str, Any] = {}
    gaps: list[Gap] = []
    weaver = _Weaver(spec)
    for name, value in spec.bind(args, kwargs).items():
        arguments[name] = weaver.weave(value, spec.argument_hint(name), (name,), gaps)
    return Woven(arguments, tuple(gaps))


def written(spec: TaskSpec, name: str, value: Any) -> Any:
    """One argument without results as JSON; `InvalidInput` if it does not fit its parameter."""
    return _Weaver(spec).weave(value, spec.argument_hint(name), (name,), [])


class _Weaver:
    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec

    def weave(self, value: Any, hint: Any, at: Path, gaps: list[Gap]) -> Any:
        if isinstance(value, Placeholder):
            if not fits(value.hint, hint):
                raise InvalidInput(
                    field=_told(at),
                    problem=f"{value.giver} is {shown(value.hint)}, and {self._spec.name} takes "
                    f"{shown(hint)} here",
                )
            if not carries(value.hint, hint):
                raise InvalidInput(
                    field=_told(at),
                    problem=f"{value.giver} is {shown(value.hint)}, and read as {shown(hint)} it "
                    f"would not be the same: let {self._spec.name} take {shown(value.hint)} here",
                )
            gaps.append(Gap(at, value, hint))
            return None
        if not any(isinstance(one, Placeholder) for one in leaves(value)):
            return self._written(value, hint, at)
        refusal: InvalidInput | None = None
        for one in members(hint):
            found: list[Gap] = []
            try:
                woven = self._weave_container(value, one, at, found)
            except InvalidInput as error:
                refusal = refusal or error
            else:
                gaps += found
                return woven
        assert refusal is not None
        raise refusal

    def _weave_container(self, value: Any, hint: Any, at: Path, gaps: list[Gap]) -> Any:
        if isinstance(value, dict):
            woven = {}
            for key, one in value.items():
                name = self._key(key, hint, at)
                inner = value_of(hint, name)
                if inner is None:
                    raise self._misplaced(hint, (*at, name))
                woven[name] = self.weave(one, inner, (*at, name), gaps)
            return woven
        several = []
        for index, one in enumerate(value):
            inner = element_of(hint, index, len(value))
            if inner is None:
                raise self._misplaced(hint, at)
            several.append(self.weave(one, inner, (*at, index), gaps))
        return several

    def _key(self, key: Any, hint: Any, at: Path) -> str:
        """A key as JSON has it."""
        if isinstance(key, Placeholder):
            raise InvalidInput(
                field=_told(at), problem=f"{key.giver} is a key here; it can be a value only"
            )
        taken = key_of(hint)
        if type(key) is str and (taken is str or taken is Any):
            return key
        (name,) = self._written({key: None}, dict[taken, None], at)  # type: ignore[valid-type]
        return str(name)

    def _misplaced(self, hint: Any, at: Path) -> InvalidInput:
        return InvalidInput(
            field=_told(at),
            problem=f"holds the result of another node, but {self._spec.name} takes "
            f"{shown(hint)} here",
        )

    def _written(self, value: Any, hint: Any, at: Path) -> Any:
        try:
            codec = codec_for(hint)
            return from_json(codec.write(codec.validated(value)))
        except ValidationError as error:
            where, problem = first_problem(error)
            told = _told((*at, *where))
        except EncodingError as unfit:
            told, problem = unfit.field(*at), unfit.problem
        except PydanticSchemaGenerationError as error:
            told, problem = _told(at), f"cannot be written as JSON: {error}"
        # Without what it came from, which shows the value.
        raise InvalidInput(field=told, problem=f"{problem} (argument of {self._spec.name})")


def fill(payload: bytes | None, inputs: Sequence[FlowInput]) -> bytes:
    """A plain payload, with the results where they belong. One that was not counted is null, and so
    is that of a node that was completed without any."""
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
            field="payload", problem=f"is not written as {ENCODING}: {error}"
        ) from None


def described(payload: bytes | None) -> Mapping[str, Any]:
    """The arguments of such a payload for a reader: a gap says what belongs there."""
    written = from_json(payload or b"{}")
    arguments: dict[str, Any] = written["arguments"]
    for gap in written["inputs"]:
        giver = f"<result of {gap['of']}>" if "of" in gap else "<result of the first>"
        _put(arguments, gap["at"], giver)
    return arguments


def _put(arguments: Any, at: Sequence[str | int], value: Any) -> None:
    *way, last = at
    for one in way:
        arguments = arguments[one]
    arguments[last] = value


def _value(found: FlowInput) -> Any:
    try:
        return from_json(found.result or b"null")
    except ValueError as error:
        raise InvalidInput(
            field="payload", problem=f"the result of {_named(found)} is not JSON: {error}"
        ) from None


def _named(found: FlowInput) -> str:
    return found.node_name or str(found.upstream_id)


class Inputs:
    """Reads the inputs of nodes; those that start together share a call."""

    def __init__(self, client: FlowFabric) -> None:
        self._client = client
        self._asked: dict[ExecutionId, asyncio.Future[list[FlowInput]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, id: ExecutionId) -> list[FlowInput]:
        """What there is for a node to be filled with."""
        asked = self._asked.get(id)
        if asked is None:
            asked = self._asked[id] = asyncio.get_running_loop().create_future()
            if len(self._asked) == 1:
                task = asyncio.create_task(self._ask())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(asked)

    async def _ask(self) -> None:
        asked, self._asked = self._asked, {}
        found: dict[ExecutionId, list[FlowInput]] = {id: [] for id in asked}
        try:
            for one in await self._client.flows.inputs(list(asked)):
                found[one.execution_id].append(one)
        except Exception as error:
            for future in asked.values():
                if not future.done():
                    future.set_exception(error)
            return
        for id, future in asked.items():
            if not future.done():
                future.set_result(found[id])


def _told(at: Sequence[Any]) -> str:
    return ".".join(map(str, at)) or "arguments"
