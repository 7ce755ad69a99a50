"""Placeholders: values of a flow's arguments that exist only once the flow runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn


class Placeholder:
    """Stands for a value that exists only once the flow runs.

    `hint` is the type of the value. `origin` says in words where the value comes from.
    """

    __slots__ = ("hint", "origin")

    def __init__(self, origin: str, hint: Any) -> None:
        self.origin = origin
        self.hint = hint

    def __repr__(self) -> str:
        return f"<{self.origin}>"

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self.origin} is not known before the flow runs. It can only be passed to another "
            "node, by itself or in a list, tuple, set or dict"
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


def leaf_values(value: Any) -> Iterator[Any]:
    """Yield the values inside nested lists, tuples, sets and dicts."""
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from leaf_values(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if isinstance(key, Placeholder):
                yield key
            yield from leaf_values(one)
    else:
        yield value
