"""The function of a step: how it is called, how its value travels as JSON by its return type, and
how long to wait before it is tried again."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput
from flowfabric.core.policy import Exponential, Retry
from flowfabric.core.step import check_step_name
from flowfabric.tasks.codec import Codec, codec_for
from flowfabric.tasks.encoding_error import EncodingError

# The name of the step whose function is running here.
in_step: ContextVar[str | None] = ContextVar("flowfabric_step", default=None)

OWN_PREFIX = "ff."

# On plain functions that return a coroutine: asyncio knows it before Python 3.12.
MARK = "_is_coroutine"


class StepCodec:
    """Writes the values of a step, and reads them again."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def write(self, value: Any, step: str) -> bytes:
        """The stored form of a value that comes back as it is; `InvalidInput` names the step."""
        try:
            return self._codec.write(value)
        except EncodingError as unfit:
            raise InvalidInput(
                field=f"step {step!r}",
                problem=f"what its function returned cannot be stored: {unfit.told()} (the hint is "
                "the return type of the function)",
            ) from None

    def read(self, stored: bytes | None) -> Any:
        """A stored value as the return type says; `ValueError` tells what is wrong with it."""
        try:
            return self._codec.read(stored or b"null")
        except ValidationError as error:
            raise ValueError(_told(error)) from None


_codecs: WeakKeyDictionary[Any, StepCodec] = WeakKeyDictionary()
_plain = StepCodec(Codec(Any))


def codec_of(function: Callable[..., Any], step: str) -> StepCodec:
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
    return inspect.iscoroutinefunction(inner) or hasattr(inner, MARK)


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


def _made(function: Any, hint: Any, step: str) -> StepCodec:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        # Of the hints only this one: parameters may name what exists for type checkers alone.
        shown = SimpleNamespace(__annotations__={"return": hint})
        hint = get_type_hints(shown, globalns=names, include_extras=True)["return"]
        if get_origin(hint) in (Awaitable, Coroutine):
            hint = get_args(hint)[-1]
        return StepCodec(codec_for(hint))
    except NameError as error:
        problem = f"the return type of its function names something that cannot be found: {error}"
    except PydanticSchemaGenerationError as error:
        problem = (
            "the return type of its function cannot travel as JSON: "
            f"{error.message.splitlines()[0]}"
        )
    raise InvalidInput(field=f"step {step!r}", problem=problem)


def _told(error: ValidationError) -> str:
    """What is wrong with a value, without the value: this is stored and logged."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:3]
    )
