"""Compares type hints: tells whether values of one type can be passed as another type."""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

_UNIONS = (Union, types.UnionType)
# Type checkers accept an int for a float, and so do we.
_WIDER: dict[type, tuple[type, ...]] = {int: (float, complex), float: (complex,)}
# Numbers and text. A value of these types reads back as the type that the hint names.
_NAMED = (int, float, complex, str, bytes)
_ABSTRACT = "collections.abc"


def is_assignable(source: Any, target: Any) -> bool:
    """Tell whether every value of `source` is a value of `target`, as a type checker would.

    Types that cannot be compared count as assignable: each value is checked when it exists.
    """
    try:
        return _cached(source, target)
    except TypeError:  # the hint is not hashable
        return _is_assignable(source, target)


def round_trips(source: Any, target: Any) -> bool:
    """Tell whether values of `source` stay the same when they are stored and read as `target`.

    `source` must be assignable to `target`. A Circle that is read as a Shape changes, and so does a
    date that is read as Any. For types that cannot be compared, return True.
    """
    source, target = plain(source), plain(target)
    if source is target or _is_open(source) or get_origin(source) is Literal:
        return not _is_open(target) or _is_json(source)
    if get_origin(source) in _UNIONS:
        return all(round_trips(one, target) for one in get_args(source))
    if _is_open(target):
        return _is_json(source)
    if get_origin(target) in _UNIONS:
        return any(
            is_assignable(source, one) and round_trips(source, one) for one in get_args(target)
        )
    (outer, inner), (wanted, takes) = _split(source), _split(target)
    if not isinstance(outer, type) or not isinstance(wanted, type):
        return True
    if is_typeddict(outer):
        return is_typeddict(wanted) or bool(takes) or _is_json(source)
    if wanted in _NAMED or wanted in _WIDER.get(_base(outer), ()):
        return True
    is_read_as_source = outer is wanted or (
        outer in (list, dict) and wanted.__module__ == _ABSTRACT
    )
    if not is_read_as_source:
        return False
    if not takes:
        several = [one for one in inner if one is not Ellipsis]
        return all(map(_is_json, several)) if outer is tuple else not inner or _is_json(source)
    if len(inner) != len(takes):
        return True
    return all(
        round_trips(*pair) for pair in zip(inner, takes, strict=True) if Ellipsis not in pair
    )


def accepts_none(hint: Any) -> bool:
    """Tell whether a parameter with this type hint accepts None."""
    return is_assignable(type(None), hint)


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the types in a union. If the type hint is no union, return it alone."""
    hint = plain(hint)
    if get_origin(hint) in _UNIONS:
        return tuple(inner for one in get_args(hint) for inner in union_members(one))
    return (hint,)


def plain(hint: Any) -> Any:
    """Return a type hint without `Annotated`, type aliases or `NewType`."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif hint is None:
            return type(None)
        elif isinstance(hint, str | ForwardRef):
            return Any  # a type that contains itself, such as pydantic's JsonValue
        else:
            return hint


def element_of(hint: Any, at: int, length: int) -> Any | None:
    """Return the type of one item of a sequence or set; None if there can be no such item."""
    if _is_open(hint):
        return Any
    origin, args = _split(hint)
    if origin is tuple and args:
        if len(args) == 2 and args[1] is Ellipsis:
            return _resolved(args[0])
        return _resolved(args[at]) if len(args) == length else None
    if not isinstance(origin, type) or issubclass(origin, str | bytes | Mapping):
        return None
    if not any(issubclass(one, origin) for one in (list, tuple, set, frozenset)):
        return None
    return _resolved(args[0]) if args else Any


def key_of(hint: Any) -> Any:
    """Return the type of the keys of a mapping."""
    args = get_args(hint)
    return _resolved(args[0]) if len(args) == 2 else Any


def value_of(hint: Any, key: str) -> Any | None:
    """Return the type of the value under a key of a mapping; None if the key is not allowed."""
    if _is_open(hint):
        return Any
    if is_typeddict(hint):
        return get_type_hints(hint, include_extras=True).get(key)
    origin, args = _split(hint)
    if not isinstance(origin, type) or not issubclass(dict, origin):
        return None
    return _resolved(args[1]) if len(args) == 2 else Any


def type_text(hint: Any) -> str:
    """Return a type as text, the way its author would write it."""
    if hint is None or hint is type(None):
        return "None"
    if get_origin(hint) in _UNIONS:
        return " | ".join(map(type_text, get_args(hint)))
    if isinstance(hint, type) and not get_args(hint):
        return hint.__qualname__ if hint.__module__ == "builtins" else _short(hint)
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def _short(kind: type) -> str:
    return kind.__qualname__.rpartition("<locals>.")[2]


@lru_cache(4096)
def _cached(source: Any, target: Any) -> bool:
    return _is_assignable(source, target)


def _is_assignable(source: Any, target: Any) -> bool:
    source, target = plain(source), plain(target)
    if source is target or _is_open(source) or _is_open(target):
        return True
    if get_origin(source) in _UNIONS:
        return all(is_assignable(one, target) for one in get_args(source))
    if get_origin(target) in _UNIONS:
        return any(is_assignable(source, one) for one in get_args(target))
    if get_origin(source) is Literal:
        return all(_is_literal_assignable(value, target) for value in get_args(source))
    if get_origin(target) is Literal:
        return False
    (outer, inner), (wanted, takes) = _split(source), _split(target)
    if not isinstance(outer, type) or not isinstance(wanted, type):
        return True
    if getattr(wanted, "_is_protocol", False) and wanted.__module__ != "collections.abc":
        return True
    if is_typeddict(outer):
        return is_typeddict(wanted) or issubclass(dict, wanted)
    if is_typeddict(wanted):
        return False
    try:
        is_one = issubclass(outer, wanted)
    except TypeError:
        return True
    if not is_one:
        return wanted in _WIDER.get(_base(outer), ())
    return _are_arguments_assignable(outer, inner, wanted, takes)


def _are_arguments_assignable(
    outer: type, inner: tuple[Any, ...], wanted: type, takes: tuple[Any, ...]
) -> bool:
    if not inner or not takes:
        return True
    if outer is tuple:
        return _is_tuple_assignable(inner, wanted, takes)
    if len(inner) != len(takes):
        # For example, a mapping passed as an iterable of its keys.
        return len(takes) != 1 or is_assignable(inner[0], takes[0])
    return all(is_assignable(one, other) for one, other in zip(inner, takes, strict=True))


def _is_tuple_assignable(inner: tuple[Any, ...], wanted: type, takes: tuple[Any, ...]) -> bool:
    is_endless = len(inner) == 2 and inner[1] is Ellipsis
    given = inner[:1] if is_endless else inner
    if wanted is not tuple or (len(takes) == 2 and takes[1] is Ellipsis):
        return all(is_assignable(one, takes[0]) for one in given)
    if is_endless or len(given) != len(takes):
        return False
    return all(is_assignable(one, other) for one, other in zip(given, takes, strict=True))


def _is_literal_assignable(value: Any, target: Any) -> bool:
    if get_origin(target) is Literal:
        return any(type(one) is type(value) and one == value for one in get_args(target))
    return is_assignable(type(value), target)


def _base(kind: type) -> type:
    """Return int for a subclass of int, float for a subclass of float, otherwise the class itself.

    An enumeration of ints counts as itself.
    """
    if issubclass(kind, bool | int) and not issubclass(kind, Enum):
        return int
    return float if issubclass(kind, float) else kind


def _resolved(hint: Any) -> Any:
    return Any if isinstance(hint, str | ForwardRef) else hint


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    origin = get_origin(hint)
    return (hint, ()) if origin is None else (origin, get_args(hint))


def _is_json(hint: Any) -> bool:
    """Tell whether values of this type can be read back from JSON without a type hint."""
    hint = plain(hint)
    if _is_open(hint) or hint in (None, type(None), bool, int, float, str):
        return True
    if get_origin(hint) in _UNIONS:
        return all(map(_is_json, get_args(hint)))
    if get_origin(hint) is Literal:
        return all(type(one) in (bool, int, str, type(None)) for one in get_args(hint))
    if is_typeddict(hint):
        return all(map(_is_json, get_type_hints(hint).values()))
    origin, args = _split(hint)
    if origin is dict:
        return not args or (plain(args[0]) in (str, Any) and _is_json(args[1]))
    return origin is list and all(map(_is_json, args))


def _is_open(hint: Any) -> bool:
    """Tell whether a type hint allows every value."""
    return hint is Any or hint is object or isinstance(hint, TypeVar)
