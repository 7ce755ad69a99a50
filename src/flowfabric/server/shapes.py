"""JSON Schemas of answers, derived from the records that `answers.shown` renders.

A record or a typed dictionary defines the shape of an answer. The schema is derived from its
fields, by the same rules as the rendering. A null field is left out, a record whose id contains a
partition also gets a field `uuid`, and leases are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from inspect import getdoc
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from flowfabric.core.ids import PartitionedId
from flowfabric.server.answers import SECRET, Verbatim
from flowfabric.server.problems import ProblemFacts

Schema = dict[str, Any]
_ID = {"type": "string", "pattern": "^\\{fp:[0-9]+\\}:[0-9a-f-]{36}$"}
_UUID = {"type": "string", "format": "uuid"}
_SIMPLE: Mapping[Any, Schema] = {
    Any: {},
    object: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bytes: {"type": "string", "description": "Text, or base64 if it is not UTF-8."},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number", "description": "Seconds."},
    UUID: _UUID,
    NoneType: {"type": "null"},
    Verbatim: {"description": "Any JSON value."},
    ProblemFacts: {"$ref": "#/components/schemas/Problem"},
}


@dataclass(frozen=True, slots=True)
class Like:
    """The shape of a record from which some fields are removed and to which others are added."""

    record: type
    name: str
    without: tuple[str, ...] = ()
    plus: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListOf:
    """The shape of a list of records. An optional list may be absent from an answer."""

    item: Like
    is_optional: bool = False


class AnyOf(tuple[Like, ...]):
    """The shape of a value that has one of several shapes."""

    __slots__ = ()

    def __new__(cls, *shapes: Like) -> Self:
        return tuple.__new__(cls, shapes)


@dataclass(frozen=True, slots=True)
class PageOf:
    """The shape of one page of a list. `plus` names fields besides `items` and `next_cursor`."""

    item: Any
    plus: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """The shape of an answer that is not JSON."""

    media_type: str


# An answer that lists rows of all partitions names the partitions that did not answer.
MISSING = {"missing_partitions": list[int] | None}


class Shapes:
    """Builds schemas. Each record gets one named schema, which other schemas refer to."""

    def __init__(self, named: dict[str, Schema]) -> None:
        self._named = named
        self._homes: dict[str, Any] = {}

    def content(self, shape: Any) -> Schema:
        """Return the schema of an answer for each of its media types."""
        if isinstance(shape, tuple):
            return {kind: one for part in shape for kind, one in self.content(part).items()}
        if isinstance(shape, Text):
            return {shape.media_type: {"schema": {"type": "string"}}}
        return {"application/json": {"schema": self.schema(shape)}}

    def schema(self, kind: Any) -> Schema:
        """Return the schema of a type. It describes values as `shown` renders them."""
        origin, parts = get_origin(kind), get_args(kind)
        if isinstance(kind, TypeVar):
            return {}
        if isinstance(kind, ListOf):
            return {"type": "array", "items": self.schema(kind.item)}
        if isinstance(kind, AnyOf):
            return _choice([self.schema(one) for one in kind])
        if isinstance(kind, PageOf):
            return self._page(kind)
        if isinstance(kind, Like):
            return self._reference(kind.name, kind)
        if kind in _SIMPLE:
            return dict(_SIMPLE[kind])
        if origin in (Union, UnionType):
            return _choice([self.schema(part) for part in parts])
        if origin is Literal:
            return {"type": "string", "enum": list(parts)}
        if origin in (Required, NotRequired):
            return self.schema(parts[0])
        found = origin or kind
        if not isinstance(found, type):
            raise TypeError(f"{kind} has no schema")
        if is_dataclass(found) or is_typeddict(found):
            return self._reference(found.__name__, found)
        if issubclass(found, PartitionedId):
            return dict(_ID)
        if issubclass(found, StrEnum):
            words = {"type": "string", "enum": [str(word) for word in found]}
            self._named.setdefault(found.__name__, {"title": found.__name__, **words})
            return {"$ref": f"#/components/schemas/{found.__name__}"}
        if issubclass(found, Mapping):
            value = self.schema(parts[1]) if parts else {}
            return {"type": "object", "additionalProperties": value or True}
        if issubclass(found, Sequence | AbstractSet):
            return {"type": "array", "items": self.schema(parts[0]) if parts else {}}
        if issubclass(found, Exception):
            return {"type": "string"}
        raise TypeError(f"{kind} has no schema")

    def _reference(self, name: str, home: Any) -> Schema:
        if name not in self._homes:
            if name in self._named:
                raise TypeError(f"a request and an answer are both called {name}")
            self._homes[name] = home
            self._named[name] = {}
            self._named[name].update(self._object(home))
        if self._homes[name] != home:
            raise TypeError(f"two answers are called {name}")
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, home: Any) -> Schema:
        record = home.record if isinstance(home, Like) else home
        hints = get_type_hints(record, include_extras=True)
        if is_dataclass(record):
            hints = {one.name: hints[one.name] for one in fields(record)}
        else:
            optional: frozenset[str] = getattr(record, "__optional_keys__", frozenset())
            hints = {n: NotRequired[k] if n in optional else k for n, k in hints.items()}
        if isinstance(home, Like):
            hints = {name: one for name, one in hints.items() if name not in home.without}
            hints |= home.plus
        text = (getdoc(record) or "").partition("\n\n")[0].replace("\n", " ")
        title = home.name if isinstance(home, Like) else record.__name__
        return {"title": title, "description": text, **self._fields(hints)}

    def _fields(self, hints: Mapping[str, Any]) -> Schema:
        properties: Schema = {}
        required = []
        for name, kind in hints.items():
            if name in SECRET:
                continue
            is_optional = _is_optional(kind)
            properties[name] = _choice([self.schema(one) for one in _present(kind)])
            required += [] if is_optional else [name]
            if name == "id" and properties[name] == _ID:
                properties["uuid"] = dict(_UUID)
                required += [] if is_optional else ["uuid"]
        return {"type": "object", "properties": properties, "required": required}

    def _page(self, shape: PageOf) -> Schema:
        own = {
            "items": {"type": "array", "items": self.schema(shape.item)},
            "next_cursor": {"type": ["string", "null"]},
        }
        more = self._fields(shape.plus)
        return {
            "type": "object",
            "properties": own | more["properties"],
            "required": [*own, *more["required"]],
        }


def _is_optional(kind: Any) -> bool:
    if isinstance(kind, ListOf):
        return kind.is_optional
    return get_origin(kind) is NotRequired or NoneType in get_args(kind)


def _present(kind: Any) -> list[Any]:
    """Return the types that a field can have when it is not null."""
    if get_origin(kind) in (NotRequired, Required):
        return _present(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [part for part in get_args(kind) if part is not NoneType]
    return [kind]


def _choice(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
