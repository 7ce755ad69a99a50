"""How a value travels as JSON by its type hint. What is written is what will be read: a value that
would not come back equal, and of the same type, is refused where it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

from pydantic import Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaSerializer, from_json

from flowfabric.tasks.codec_plan import Plan, mapped, nodes
from flowfabric.tasks.comparison import Comparison
from flowfabric.tasks.encoding_error import EncodingError

# JSON has no infinity and no NaN; as null they would be refused when they are read.
_AS_JSON = CoreConfig(ser_json_inf_nan="strings")
# JSON readers refuse numbers of more digits than 4300.
_DIGITS = 4300
_TOO_LONG = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))


class Codec:
    """Writes the values of one type, and reads them again."""

    def __init__(self, hint: Any, *, is_call: bool = False) -> None:
        """`is_call`: the hint is a TypedDict that holds arguments by their names."""
        self._type: TypeAdapter[Any] = TypeAdapter(hint)
        schema: Any = self._type.core_schema
        plan = Plan(schema, is_call=is_call)
        self._look = plan.look
        self._is_safe = plan.is_safe
        self._is_lenient = not plan.has_hidden_any
        self._enums = frozenset(plan.enums)
        # What validation has made, all of it, is what the hint says; Any says nothing.
        self._is_trusted = (is_call and not plan.has_objects) or schema["type"] == "any"
        self._scalar = plan.scalar
        writer = SchemaSerializer(_writable(schema), _AS_JSON)
        write: Callable[..., bytes] = writer.to_json
        if plan.is_for_itself:
            write = partial(write, round_trip=True)
        self._written = partial(write, warnings=False)
        # This costs a microsecond by itself.
        self._written_strictly = partial(write, warnings="error")
        # Fields are written by their names; others may write them by their aliases.
        validator = self._type.validator
        self.validated = partial(validator.validate_python, by_alias=True, by_name=True)
        self._read = partial(validator.validate_json, by_alias=True, by_name=True)

    def write(self, value: Any) -> bytes:
        """The stored form of a value; `EncodingError` if it would not come back as it is."""
        is_sure = self._is_safe and (self._is_trusted or type(value) is self._scalar)
        is_safe = self._is_safe
        if is_sure or not is_safe:
            stored = self._forced(value)
        else:
            try:
                stored = self._written_strictly(value)
            except ValueError:
                # It is not what the hint names. It may be as good, such as 0 for a Decimal.
                is_safe = False
                stored = self._forced(value)
            else:
                # None is written as null whatever the hint says.
                is_safe = b"null" not in stored or (value is None and self._takes_none)
        if self._look is not None and (unfit := self._look(value)) is not None:
            raise unfit
        if not is_safe:
            self._compare(value, stored)
        elif len(stored) > _DIGITS and _TOO_LONG.search(stored):
            try:
                from_json(stored)
            except ValueError as error:
                raise EncodingError(_unreadable(str(error))) from None
        return stored

    @cached_property
    def _takes_none(self) -> bool:
        try:
            return self.read(b"null") is None
        except ValidationError:
            return False

    def read(self, stored: bytes) -> Any:
        """A stored value as the hint says; `ValidationError` if it does not fit."""
        return self._read(stored)

    def unfit_part(self, value: Mapping[str, Any]) -> str | None:
        """The part of a mapping that cannot be written, or not be read, by itself."""
        for name in value:
            try:
                from_json(self._written(value, include={name}))
            except ValueError:
                return name
        return None

    def _forced(self, value: Any) -> bytes:
        try:
            return self._written(value)
        except ValueError as error:
            problem = str(error).partition(" [input_value=")[0]
            raise EncodingError(f"cannot be written as JSON: {problem}") from None

    def _compare(self, value: Any, stored: bytes) -> None:
        try:
            again = self.read(stored)
        except ValidationError as error:
            at, problem = first_problem(error)
            if problem.startswith("Invalid JSON"):
                raise EncodingError(_unreadable(problem)) from None
            raise EncodingError(f"could not be read again: {problem}", at) from None
        comparison = Comparison(is_lenient=self._is_lenient, enums=self._enums)
        if (unfit := comparison.difference(value, again)) is not None:
            raise unfit
        if comparison.saw_opaque and self._forced(again) != stored:
            raise EncodingError("would come back as something that is written otherwise")


def codec_for(hint: Any) -> Codec:
    """One for all that have this hint, such as functions made anew in every run of a handler."""
    try:
        return _cached(hint, repr(hint))
    except TypeError:  # a hint need not be hashable
        return Codec(hint)


@lru_cache(maxsize=512)
def _cached(hint: Any, shown: str) -> Codec:
    """By what it looks like as well: unions are equal in whatever order, and are read in theirs."""
    return Codec(hint)


def first_problem(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Where a value does not fit its hint, and why, without the value: this is told and logged."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return first["loc"], first["msg"]


def _unreadable(problem: str) -> str:
    told = problem.removeprefix("Invalid JSON: ").partition(" at line ")[0]
    return f"could not be read again from JSON: {told}. Send a very long number as text"


def _writable(schema: Any) -> Any:
    """A schema by which everything is written so that it can be read: secrets as their value,
    infinity and NaN as text."""
    found = mapped(schema, _writable)
    if found.get("type") in ("model", "dataclass"):
        # A class brings a serialiser of its own, made with its own settings. By another class,
        # that stands for it, pydantic makes one with ours.
        found["cls"] = _stand_in(found["cls"])
        found["config"] = {**(found.get("config") or {}), **_AS_JSON}
    how = found.get("serialization")
    if isinstance(how, dict) and how.get("function") in _maskers():
        found["serialization"] = {**how, "function": _revealed, "info_arg": False}
    return found


def _stand_in(named: type) -> type:
    class OfThisClass(type):
        def __instancecheck__(cls, value: object) -> bool:
            return type(value) is named

    return OfThisClass(named.__name__, (), {})


@lru_cache(maxsize=1)
def _maskers() -> frozenset[Any]:
    """The functions by which pydantic writes secrets as asterisks."""
    hows = (
        node["serialization"]
        for one in (SecretStr, SecretBytes, Secret[str])
        for node in nodes(TypeAdapter(one).core_schema, {})
        if "serialization" in node
    )
    return frozenset(how["function"] for how in hows if "function" in how)


def _revealed(value: Any) -> Any:
    is_secret = isinstance(value, SecretStr | SecretBytes | Secret)
    return value.get_secret_value() if is_secret else value
