"""Signals in a handler: await one signal, or iterate over several."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput, WaitTimeout
from flowfabric.core.signal import WaitAnswer, check_signal_name
from flowfabric.core.step import StepRecord
from flowfabric.tasks.codec import Codec, codec_for, describe

if TYPE_CHECKING:
    from flowfabric.handlers.durable_run import DurableRun

T = TypeVar("T")


class _NoDefault:
    """The type of `NO_DEFAULT`: no default was given. None would be a valid default."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT: Any = _NoDefault()


class AwaitedSignal(Generic[T]):
    """A wait for a signal, to await or to pass to `first`."""

    __slots__ = ("_wait", "name")

    def __init__(self, name: str, wait: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.name = name
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    def __repr__(self) -> str:
        return f"ctx.signal({self.name!r})"


def signal_codec(name: str, hint: Any) -> Codec:
    """Return the codec for the values of a signal."""
    check_signal_name(name)
    try:
        return codec_for(hint)
    except PydanticSchemaGenerationError as error:
        raise InvalidInput(
            field="type",
            problem=f"of signal {name!r} cannot be sent as JSON: {error.message.splitlines()[0]}",
        ) from None


def read_answer(
    durable: DurableRun,
    name: str,
    answer: StepRecord | WaitAnswer,
    codec: Codec,
    default: Any,
) -> Any:
    """Return the value of the signal that a wait took, or the default of the wait.

    Hold the execution if the value does not fit its type.
    """
    if answer.taken_as != "signals":
        return default_or_error(f"signal {name!r}", answer, default)
    try:
        return codec.read(answer.value or b"null")
    except ValidationError as error:
        problem = f"the value of the signal does not fit: {describe(error)}"
        raise durable.hold(f"signal {name}", problem) from None


def default_or_error(what: str, answer: StepRecord | WaitAnswer, default: Any) -> Any:
    """Return the default of a wait without an answer. Raise WaitTimeout if no default was given."""
    if default is not NO_DEFAULT:
        return default
    is_resumed = answer.taken_as == "operator"
    how = "an operator resumed the execution" if is_resumed else "none came in time"
    raise WaitTimeout(f"No {what}: {how}.", taken_as=answer.taken_as)
