"""The function of a step: how it is called, how its value travels as JSON by its return type, and
how long to wait before it is tried again."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaSerializer

from flowfabric.core.errors import InvalidInput
from flowfabric.core.policy import Exponential, Retry
from flowfabric.core.step import check_step_name

# The name of the step whose function is running here.
in_step: ContextVar[str | None] = ContextVar("flowfabric_step", default=None)

OWN_PREFIX = "ff."

_AS_JSON = CoreConfig(ser_json_inf_nan="strings")
# Hints that say nothing about what is inside: a date would come back as text.
_LOOSE: tuple[Any, ...] = (Any, object, dict, list)


class Codec:
    """Writes the values of a step, and reads them again."""

    def __init__(self, hint: Any) -> None:
        self._is_loose = any(hint is one for one in _LOOSE)
        self._type = TypeAdapter(hint)
        self._writer = SchemaSerializer(self._type.core_schema, _AS_JSON)

    def write(self, value: Any, step: str) -> bytes:
        """The stored form of a value that can be read again; `InvalidInput` names the step."""
        try:
            stored = self._writer.to_json(value, warnings="error")
            again = self._type.validator.validate_json(stored)
        except ValidationError as error:
            problem = f"it could not be read again: {_told(error)}"
        except ValueError as error:
            problem = str(error).partition(" [input_value=")[0]
        else:
            if not self._is_loose or again == value:
                return stored
            problem = (
                f"a {type(value).__name__} does not come back from JSON as it was; give the "
                "function a return type"
            )
        raise InvalidInput(
            field=f"step {step!r}",
            problem=f"what its function returned cannot be stored: {problem}",
        )

    def read(self, stored: bytes | None) -> Any:
        """A stored value as the return type says; `ValueError` tells what is wrong with it."""
        try:
            return self._type.validator.validate_json(stored or b"null")
        except ValidationError as error:
            raise ValueError(_told(error)) from None


_codecs: WeakKeyDictionary[Any, Codec] = WeakKeyDictionary()
_plain = Codec(Any)


def codec_of(function: Callable[..., Any], step: str) -> Codec:
    """How the values of a function travel."""
    inner = _innermost(function)
    if isinstance(inner, type):
        return _made(inner, inner, step)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    annotations = getattr(inner, "__annotations__", None)
    if not annotations or "return" not in annotations:
        return _plain
    codec = _codecs.get(inner)
    if codec is None:
        codec = _codecs[inner] = _made(inner, annotations["return"], step)
    return codec


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    inner = _innermost(function)
    if not (inspect.isroutine(inner) or isinstance(inner, type)):
        inner = type(inner).__call__
    return inspect.iscoroutinefunction(inner)


def call_in_thread(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # No future can carry it: whoever waits would wait for ever.
        raise RuntimeError("the function raised StopIteration") from error


def check_name(name: str) -> None:
    check_step_name(name)
    if name.startswith(OWN_PREFIX):
        raise InvalidInput(field="name", problem=f"names that begin with {OWN_PREFIX} are reserved")


def may_try_again(retry: Retry | None, failures: int, error: Exception) -> bool:
    return retry is not None and failures < retry.max_retries and retry.allows(error)


def pause_before(retry: Retry, failures: int) -> float:
    """Seconds to wait after the n-th failure, counted from 0."""
    backoff = retry.backoff
    if not isinstance(backoff, Exponential):
        return max(backoff.delay.total_seconds(), 0.0)
    most = backoff.maximum / timedelta(seconds=1)
    try:
        pause = min(backoff.initial.total_seconds() * backoff.multiplier**failures, most)
    except OverflowError:
        pause = most
    return pause * random.uniform(0.5, 1.0) if backoff.jitter else pause


def _innermost(function: Callable[..., Any]) -> Any:
    """The function itself, behind a task, a partial or a bound method."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif callable(inner := getattr(getattr(function, "spec", None), "function", None)):
            function = inner
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function


def _made(function: Any, hint: Any, step: str) -> Codec:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        # Of the hints only this one: parameters may name what exists for type checkers alone.
        shown = SimpleNamespace(__annotations__={"return": hint})
        hint = get_type_hints(shown, globalns=names, include_extras=True)["return"]
        if get_origin(hint) in (Awaitable, Coroutine):
            hint = get_args(hint)[-1]
        try:
            return _codec(hint)
        except TypeError:  # a hint that cannot be hashed
            return Codec(hint)
    except NameError as error:
        problem = f"the return type of its function names something that cannot be found: {error}"
    except PydanticSchemaGenerationError as error:
        problem = (
            "the return type of its function cannot travel as JSON: "
            f"{error.message.splitlines()[0]}"
        )
    raise InvalidInput(field=f"step {step!r}", problem=problem)


@lru_cache(maxsize=512)
def _codec(hint: Any) -> Codec:
    """One for all functions of a type: those made inside a handler are new in every run."""
    return Codec(hint)


def _told(error: ValidationError) -> str:
    """What is wrong with a value, without the value: this is stored and logged."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:3]
    )
