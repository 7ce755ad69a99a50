"""Encodes values as JSON by their type hints, and decodes them.

Encoding refuses a value if decoding would return a different value or a different type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

from pydantic import (
    PydanticInvalidForJsonSchema,
    PydanticUserError,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreConfig, SchemaSerializer, from_json

from flowfabric.tasks.codec_plan import CodecPlan, mapped, nodes
from flowfabric.tasks.comparison import Comparison
from flowfabric.tasks.encoding_error import EncodingError

# JSON has no infinity and no NaN. Pydantic would write null, which the reader refuses.
_AS_JSON = CoreConfig(ser_json_inf_nan="strings")
# JSON readers refuse numbers of more than 4300 digits.
_DIGITS = 4300
_TOO_LONG = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))
_PROBLEMS_SHOWN = 20


class Codec:
    """Writes the values of one type as JSON, and reads them back."""

    def __init__(self, hint: Any, *, is_call: bool = False) -> None:
        """Make a codec. If `is_call` is true, `hint` is a TypedDict of a task's arguments."""
        self._type: TypeAdapter[Any] = TypeAdapter(hint)
        schema: Any = self._type.core_schema
        plan = CodecPlan(schema, is_call=is_call)
        self._check = plan.check
        self._is_safe = plan.is_safe
        self._is_lenient = not plan.has_hidden_any
        self._enums = frozenset(plan.enums)
        # Whether validated values have the types of the hint. Any has no type to check.
        self._is_trusted = (is_call and not plan.has_objects) or schema["type"] == "any"
        # Whether every valid value can be written and reads back equal.
        self._is_certain = self._is_safe and self._is_trusted and self._check is None
        self._scalar = plan.scalar
        writer = SchemaSerializer(_writable(schema), _AS_JSON)
        write: Callable[..., bytes] = writer.to_json
        if plan.is_for_itself:
            write = partial(write, round_trip=True)
        self._written = partial(write, warnings=False)
        # Writes strictly. This costs a microsecond more.
        self._written_strictly = partial(write, warnings="error")
        # We write fields by their names; other writers may use their aliases.
        validator = self._type.validator
        self.validated = partial(validator.validate_python, by_alias=True, by_name=True)
        self._read = partial(validator.validate_json, by_alias=True, by_name=True)

    @cached_property
    def has_secrets(self) -> bool:
        """Whether values of this type can contain pydantic secrets, which are stored as plain
        text.
        """
        hidden = (node.get("serialization") for node in nodes(self._type.core_schema, {}))
        return any(isinstance(how, dict) and how.get("function") in _maskers() for how in hidden)

    def write_valid(self, value: Any) -> bytes:
        """Validate a value and encode it. For a simple type, this is faster than `write`."""
        valid = self.validated(value)
        if self._is_certain:
            try:
                stored = self._written(valid)
            except ValueError:
                pass  # `write` names the problem
            else:
                if len(stored) <= _DIGITS:
                    return stored
        return self.write(valid)

    def write(self, value: Any) -> bytes:
        """Encode a value. Raises `EncodingError` if the value would change when it is read back."""
        is_sure = self._is_safe and (self._is_trusted or type(value) is self._scalar)
        is_safe = self._is_safe
        if is_sure or not is_safe:
            stored = self._forced(value)
        else:
            try:
                stored = self._written_strictly(value)
            except ValueError:
                # The value is not of the type of the hint, but may read back equal, as 0 does for a
                # Decimal.
                is_safe = False
                stored = self._forced(value)
            else:
                # None is written as null for every hint.
                is_safe = b"null" not in stored or (value is None and self._takes_none)
        if self._check is not None and (unfit := self._check(value)) is not None:
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
        """Decode a stored value. Raises `ValidationError` if it does not match the type hint."""
        return self._read(stored)

    def json_schema(self, *, by_alias: bool = True, prefix: str = "") -> dict[str, Any] | None:
        """Return the JSON Schema of the type; None if the type has no JSON Schema.

        The names of the definitions to which the schema refers get `prefix` in front.
        """
        try:
            return self._type.json_schema(
                by_alias=by_alias, ref_template=f"#/$defs/{prefix}{{model}}"
            )
        except (PydanticInvalidForJsonSchema, PydanticUserError):
            return None

    def unfit_part(self, value: Mapping[str, Any]) -> str | None:
        """Return the first key whose value cannot be stored, or None."""
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
            at, problem = problems(error)[0]
            if problem.startswith("Invalid JSON"):
                raise EncodingError(_unreadable(problem)) from None
            raise EncodingError(f"could not be read back: {problem}", at) from None
        comparison = Comparison(is_lenient=self._is_lenient, enums=self._enums)
        if (unfit := comparison.difference(value, again)) is not None:
            raise unfit
        if comparison.saw_opaque and self._forced(again) != stored:
            raise EncodingError("would read back as a value with different JSON")


def codec_for(hint: Any) -> Codec:
    """Return the codec for a type hint. Codecs are shared, because making one takes long."""
    try:
        return _cached(hint, repr(hint))
    except TypeError:  # the hint is not hashable
        return Codec(hint)


@lru_cache(maxsize=512)
def _cached(hint: Any, shown: str) -> Codec:
    """Return a cached codec.

    Unions of the same types in different orders are equal, but may read a value differently.
    `shown`, the text of the type hint, tells them apart.
    """
    return Codec(hint)


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Return the path to each part of a value that does not match its type hint, and the reason.

    The value itself is not included.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [(one["loc"], one["msg"]) for one in found]


def describe(error: ValidationError) -> str:
    """Return the first problems of a value, and how many more there are, as one text.

    The text does not contain the value, because the text is logged.
    """
    texts = [f"{path_text(at)}: {problem}" if at else problem for at, problem in problems(error)]
    more = len(texts) - _PROBLEMS_SHOWN
    return "; ".join(texts[:_PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def path_text(at: Sequence[Any]) -> str:
    return ".".join(map(str, at))


def _unreadable(problem: str) -> str:
    reason = problem.removeprefix("Invalid JSON: ").partition(" at line ")[0]
    return f"could not be read back from JSON: {reason}. Send a very long number as text"


def _writable(schema: Any) -> Any:
    """Return a copy of a schema. Values that are written with the copy can be read back.

    The copy writes secrets as plain text, and NaN as text.
    """
    found = mapped(schema, _writable)
    if found.get("type") in ("model", "dataclass"):
        # A class has a serialiser with its own settings. For a stand-in class, Pydantic makes a
        # serialiser with our settings.
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
    """Return the functions that pydantic uses to write secrets as asterisks."""
    serializations = (
        node["serialization"]
        for one in (SecretStr, SecretBytes, Secret[str])
        for node in nodes(TypeAdapter(one).core_schema, {})
        if "serialization" in node
    )
    return frozenset(how["function"] for how in serializations if "function" in how)


def _revealed(value: Any) -> Any:
    is_secret = isinstance(value, SecretStr | SecretBytes | Secret)
    return value.get_secret_value() if is_secret else value
