"""The names of steps, the JSON of their values, and the delays of their retries."""

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
from flowfabric.core.step import SECRET, check_step_name
from flowfabric.handlers.loops import COROUTINE_MARK
from flowfabric.tasks.codec import Codec, codec_for, describe
from flowfabric.tasks.encoding_error import EncodingError
from flowfabric.tasks.retry_rules import decide

# The name of the step whose function runs here.
in_step: ContextVar[str | None] = ContextVar("flowfabric_step", default=None)

# Names of the context's own steps begin with this.
RESERVED_PREFIX = "ff."
PATCH_PREFIX = f"{RESERVED_PREFIX}patch "
USAGE = f"{RESERVED_PREFIX}usage"


class StepCodec:
    """Writes the values of a step as JSON, and reads them back."""

    def __init__(self, codec: Codec, *, has_hint: bool = True) -> None:
        self._codec = codec
        self._hint = "the hint is the return type of" if has_hint else "there is no return type on"

    @property
    def encoding(self) -> str | None:
        """The encoding to store with each value, or None.

        It is `SECRET` if the values contain secrets, so that no value is shown.
        """
        return SECRET if self._codec.has_secrets else None

    def write(self, value: Any, step: str) -> bytes:
        """Encode a value. If the value cannot be read back unchanged, raise `InvalidInput`, which
        names the step.
        """
        try:
            return self._codec.write(value)
        except EncodingError as unfit:
            raise InvalidInput(
                field=f"step {step!r}",
                problem=f"the value of its function cannot be stored: {unfit.describe()}"
                f" ({self._hint} the function)",
            ) from None

    def read(self, stored: bytes | None) -> Any:
        """Decode a value by the return type. Raises `ValueError` if the value does not fit."""
        try:
            return self._codec.read(stored or b"null")
        except ValidationError as error:
            raise ValueError(describe(error)) from None


_codecs: WeakKeyDictionary[Any, StepCodec] = WeakKeyDictionary()
_untyped = StepCodec(Codec(Any), has_hint=False)


def codec_of(function: Callable[..., Any], step: str) -> StepCodec:
    """Return the codec for the values that a function returns."""
    inner = _unwrap(function)
    if isinstance(inner, type):
        return _build_codec(inner, inner, step)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    annotations = getattr(inner, "__annotations__", None)
    if not annotations or "return" not in annotations:
        return _untyped
    codec = _codecs.get(inner)
    if codec is None:
        codec = _codecs[inner] = _build_codec(inner, annotations["return"], step)
    return codec


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a call of the function must be awaited."""
    inner = _unwrap(function)
    if not (inspect.isroutine(inner) or isinstance(inner, type)):
        inner = type(inner).__call__
    return inspect.iscoroutinefunction(inner) or hasattr(inner, COROUTINE_MARK)


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function. A step without its own name gets this name."""
    inner = _unwrap(function)
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def check_name(name: str) -> None:
    """Refuse a step name that is invalid or reserved."""
    check_step_name(name)
    if name.startswith(RESERVED_PREFIX):
        raise InvalidInput(
            field="name", problem=f"names that begin with {RESERVED_PREFIX} are reserved"
        )


def retry_delay(retry: Retry, failures: int, error: Exception) -> float | None:
    """Return the seconds until the step is called again, or None if no retry is left.

    `failures` is how often the step had failed before `error`.
    """
    if failures >= retry.max_retries:
        return None
    decision = decide(error, retry, failures + 1)
    if not decision.is_allowed:
        return None
    return _backoff_delay(retry, failures) if decision.seconds is None else decision.seconds


def _backoff_delay(retry: Retry, failures: int) -> float:
    backoff = retry.backoff
    if not isinstance(backoff, Exponential):
        return max(backoff.delay.total_seconds(), 0.0)
    most = backoff.maximum / timedelta(seconds=1)
    try:
        delay = min(backoff.initial.total_seconds() * backoff.multiplier**failures, most)
    except OverflowError:
        delay = most
    return delay * random.uniform(0.5, 1.0) if backoff.jitter else delay


def _unwrap(function: Callable[..., Any]) -> Any:
    """Return the function behind a task, a partial or a bound method."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif callable(inner := getattr(getattr(function, "spec", None), "function", None)):
            function = inner
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function


def _build_codec(function: Any, hint: Any, step: str) -> StepCodec:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        # Resolve only the return hint: parameters may name types that only type checkers see.
        shown = SimpleNamespace(__annotations__={"return": hint})
        hint = get_type_hints(shown, globalns=names, include_extras=True)["return"]
        if get_origin(hint) in (Awaitable, Coroutine):
            hint = get_args(hint)[-1]
        return StepCodec(codec_for(hint))
    except NameError as error:
        problem = f"the return type of its function names something that cannot be found: {error}"
    except PydanticSchemaGenerationError as error:
        problem = (
            "the return type of its function cannot be stored as JSON: "
            f"{error.message.splitlines()[0]}"
        )
    raise InvalidInput(field=f"step {step!r}", problem=problem)
