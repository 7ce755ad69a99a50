"""Recognises the parameter of a task that receives the context."""

from __future__ import annotations

from typing import Any


class HandlerContext:
    """Base of the context class. A parameter annotated with a subclass receives the context."""

    __slots__ = ()


def is_context(hint: Any) -> bool:
    """Tell whether a type hint names the context class."""
    return isinstance(hint, type) and issubclass(hint, HandlerContext)
