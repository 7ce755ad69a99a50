"""Whether a value of one type can be given where another is taken: told by the hints alone, before
there is a value."""

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
# As type checkers have it: a whole number is given where a float is taken.
_WIDER: dict[type, tuple[type, ...]] = {int: (float, complex), float: (complex,)}


# Numbers and text: what equals one comes back as one.
_NAMED = (int, float, complex, str, bytes)
_ABSTRACT = "collections.abc"


def fits(source: Any, target: Any) -> bool:
    """Whether every value of `source` is one of `target`, as a type checker would say. What is not
    understood fits: the value itself is looked at when it is there."""
    try:
        return _cached(source, target)
    except TypeError:  # a hint need not be hashable
        return _fits(source, target)


def carries(source: Any, target: Any) -> bool:
    """Whether a value of `source` that fits is the same when it is read as `target`: a Circle read
    as a Shape is not, nor is a date read as Any. What is not understood is taken to be."""
    source, target = plain(source), plain(target)
    if source is target or _is_open(source) or get_origin(source) is Literal:
        return not _is_open(target) or _is_json(source)
    if get_origin(source) in _UNIONS:
        return all(carries(one, target) for one in get_args(source))
    if _is_open(target):
        return _is_json(source)
    if get_origin(target) in _UNIONS:
        return any(fits(source, one) and carries(source, one) for one in get_args(target))
    (outer, inner), (wanted, takes) = _split(source), _split(target)
    if not isinstance(outer, type) or not isinstance(wanted, type):
        return True
    if is_typeddict(outer):
        return is_typeddict(wanted) or bool(takes) or _is_json(source)
    if wanted in _NAMED or wanted in _WIDER.get(_base(outer), ()):
        return True
    is_read_so = outer is wanted or (outer in (list, dict) and wanted.__module__ == _ABSTRACT)
    if not is_read_so:
        return False
    if not takes:
        several = [one for one in inner if one is not Ellipsis]
        return all(map(_is_json, several)) if outer is tuple else not inner or _is_json(source)
    if len(inner) != len(takes):
        return True
    return all(carries(*pair) for pair in zip(inner, takes, strict=True) if Ellipsis not in pair)


def accepts_none(hint: Any) -> bool:
    """Whether None may be given where this is taken."""
    return fits(type(None), hint)


def members(hint: Any) -> tuple[Any, ...]:
    """What a hint is one of: those of a union, else itself."""
    hint = plain(hint)
    if get_origin(hint) in _UNIONS:
        return tuple(inner for one in get_args(hint) for inner in members(one))
    return (hint,)


def plain(hint: Any) -> Any:
    """A hint without what only names or annotates it."""
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
            return Any  # a type that holds itself, as pydantic's JsonValue
        else:
            return hint


def element_of(hint: Any, at: int, length: int) -> Any | None:
    """What a sequence or a set of this type takes at a place; None if it takes nothing there."""
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
    """What the keys of a mapping of this type are."""
    args = get_args(hint)
    return _resolved(args[0]) if len(args) == 2 else Any


def value_of(hint: Any, key: str) -> Any | None:
    """What a mapping of this type takes under a key; None if it takes nothing there."""
    if _is_open(hint):
        return Any
    if is_typeddict(hint):
        return get_type_hints(hint, include_extras=True).get(key)
    origin, args = _split(hint)
    if not isinstance(origin, type) or not issubclass(dict, origin):
        return None
    return _resolved(args[1]) if len(args) == 2 else Any


def shown(hint: Any) -> str:
    """A type as its author would write it."""
    if hint is None or hint is type(None):
        return "None"
    if get_origin(hint) in _UNIONS:
        return " | ".join(map(shown, get_args(hint)))
    if isinstance(hint, type) and not get_args(hint):
        return hint.__qualname__ if hint.__module__ == "builtins" else _short(hint)
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def _short(kind: type) -> str:
    return kind.__qualname__.rpartition("<locals>.")[2]


@lru_cache(4096)
def _cached(source: Any, target: Any) -> bool:
    return _fits(source, target)


def _fits(source: Any, target: Any) -> bool:
    source, target = plain(source), plain(target)
    if source is target or _is_open(source) or _is_open(target):
        return True
    if get_origin(source) in _UNIONS:
        return all(fits(one, target) for one in get_args(source))
    if get_origin(target) in _UNIONS:
        return any(fits(source, one) for one in get_args(target))
    if get_origin(source) is Literal:
        return all(_literal_fits(value, target) for value in get_args(source))
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
    return _arguments_fit(outer, inner, wanted, takes)


def _arguments_fit(
    outer: type, inner: tuple[Any, ...], wanted: type, takes: tuple[Any, ...]
) -> bool:
    if not inner or not takes:
        return True
    if outer is tuple:
        return _tuple_fits(inner, wanted, takes)
    if len(inner) != len(takes):
        # A mapping given where its keys are iterated, and the like.
        return len(takes) != 1 or fits(inner[0], takes[0])
    return all(fits(one, other) for one, other in zip(inner, takes, strict=True))


def _tuple_fits(inner: tuple[Any, ...], wanted: type, takes: tuple[Any, ...]) -> bool:
    is_endless = len(inner) == 2 and inner[1] is Ellipsis
    given = inner[:1] if is_endless else inner
    if wanted is not tuple or (len(takes) == 2 and takes[1] is Ellipsis):
        return all(fits(one, takes[0]) for one in given)
    if is_endless or len(given) != len(takes):
        return False
    return all(fits(one, other) for one, other in zip(given, takes, strict=True))


def _literal_fits(value: Any, target: Any) -> bool:
    if get_origin(target) is Literal:
        return any(type(one) is type(value) and one == value for one in get_args(target))
    return fits(type(value), target)


def _base(kind: type) -> type:
    """The number that a class is one of; an enumeration of numbers is one as well."""
    if issubclass(kind, bool | int) and not issubclass(kind, Enum):
        return int
    return float if issubclass(kind, float) else kind


def _resolved(hint: Any) -> Any:
    return Any if isinstance(hint, str | ForwardRef) else hint


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    origin = get_origin(hint)
    return (hint, ()) if origin is None else (origin, get_args(hint))


def _is_json(hint: Any) -> bool:
    """Whether values of this type come back from JSON without a type that says what they are."""
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
    """Whether anything is meant."""
    return hint is Any or hint is object or isinstance(hint, TypeVar)
