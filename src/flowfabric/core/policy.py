"""Retry, timeout and retention policies, as stored with an execution."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

from flowfabric.core.errors import InvalidInput

ENGINE_MAX_RECLAIMS = 100
TASK_MAX_RECLAIMS = 20


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wait the same time before every retry."""

    delay: timedelta = timedelta(seconds=1)

    def to_json(self) -> dict[str, Any]:
        return {"type": "fixed", "delay_ms": milliseconds("delay", self.delay)}


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait longer before every retry: start with `initial`, multiply by `multiplier`, up to
    `maximum`.

    If `jitter` is set, each wait is shortened at random by up to a half, so that executions that
    failed together are not all retried at the same moment.
    """

    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(minutes=1)
    multiplier: float = 2.0
    jitter: bool = True

    def to_json(self) -> dict[str, Any]:
        if not 1 <= self.multiplier <= 1000:
            raise InvalidInput(field="retry.backoff.multiplier", problem="must be from 1 to 1000")
        return {
            "type": "exponential",
            "initial_delay_ms": milliseconds("retry.backoff.initial", self.initial),
            "max_delay_ms": milliseconds("retry.backoff.maximum", self.maximum),
            "multiplier": self.multiplier,
            "jitter": self.jitter,
        }


Backoff = Fixed | Exponential


ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Try a failed execution again, up to `max_retries` times after the first attempt.

    Exceptions of the classes in `retry_on` (default: all) are retried, unless their class is also
    in `never_on`. An exception group is retried if each of its members would be retried. But if
    `retry_on` names a class of exception groups, a group is judged by its own class.

    If the classes allow a retry, the worker calls `when(error, attempt)`, where `attempt` counts
    from 1. If `when` returns False, the execution fails. If `respect_retry_after` is set, an HTTP
    error with a Retry-After header is retried at the time that the header gives.
    """

    max_retries: int = 3
    backoff: Backoff = field(default_factory=Exponential)
    retry_on: ExceptionTypes = BaseException
    never_on: ExceptionTypes = ()
    when: Callable[[BaseException, int], bool] | None = None
    respect_retry_after: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Fixed | Exponential):
            raise InvalidInput(field="retry.backoff", problem="must be a Fixed or an Exponential")
        for name in ("retry_on", "never_on"):
            given = getattr(self, name)
            for kind in given if isinstance(given, tuple) else (given,):
                if not isinstance(kind, type) or not issubclass(kind, BaseException):
                    raise InvalidInput(
                        field=f"retry.{name}",
                        problem=f"must be an exception class or a tuple of them, not {kind!r:.60}",
                    )

        if self.when is not None and (not callable(self.when) or iscoroutinefunction(self.when)):
            raise InvalidInput(
                field="retry.when",
                problem="must be a plain function that takes the error and the attempt",
            )

    def allows(self, error: BaseException) -> bool:
        """Return whether the class of an error allows a retry."""
        if isinstance(error, self.never_on):
            return False
        if isinstance(error, BaseExceptionGroup) and not names_groups(self.retry_on):
            return all(self.allows(member) for member in error.exceptions)
        return isinstance(error, self.retry_on)

    def to_json(self) -> dict[str, Any]:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int):
            raise InvalidInput(field="retry.max_retries", problem="must be a whole number")
        if not 0 <= self.max_retries <= 1_000_000:
            raise InvalidInput(field="retry.max_retries", problem="must be from 0 to 1000000")
        return {"max_retries": self.max_retries, "backoff": self.backoff.to_json()}


def names_groups(kinds: ExceptionTypes) -> bool:
    """Return whether one of the classes is a class of exception groups."""
    classes = kinds if isinstance(kinds, tuple) else (kinds,)
    return any(issubclass(kind, BaseExceptionGroup) for kind in classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy:
    """How much a stream keeps, and how long.

    A stream keeps about `max_frames` of its newest durable frames (default: all). A stream refuses
    frames beyond `max_bytes` (default: 64 MiB). Frames are deleted when `retention` has
    passed since the end of their execution (default: together with the execution).
    """

    max_frames: int | None = None
    max_bytes: int | None = None
    retention: timedelta | None = None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for name in ("max_frames", "max_bytes"):
            if (number := getattr(self, name)) is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int):
                raise InvalidInput(field=f"stream_policy.{name}", problem="must be a whole number")
            if not 1 <= number <= 1_073_741_824:
                raise InvalidInput(
                    field=f"stream_policy.{name}", problem="must be from 1 to 1073741824"
                )
            document[name] = number
        if self.retention is not None:
            document["retention_ms"] = milliseconds("stream_policy.retention", self.retention)
        return document


def policy_json(
    *,
    retry: Retry | None = None,
    timeout: timedelta | None = None,
    retention: timedelta | None = None,
    stream: StreamPolicy | None = None,
) -> str | None:
    """Return the policy as JSON, or None if every value is the default."""
    policy: dict[str, Any] = {}
    if retry is not None:
        policy["retry_policy"] = retry.to_json()
    if timeout is not None:
        policy["timeout_policy"] = {"attempt_timeout_ms": milliseconds("timeout", timeout, least=1)}
    if retention is not None:
        policy["retention_ms"] = milliseconds("retention", retention)
    if stream is not None:
        policy["stream_policy"] = stream.to_json()
    return json.dumps(policy, separators=(",", ":")) if policy else None


def milliseconds(name: str, duration: timedelta, *, least: float = 0) -> float:
    """Return a duration in milliseconds. If it is less than `least`, raise InvalidInput."""
    if not isinstance(duration, timedelta):
        raise InvalidInput(
            field=name, problem=f"must be a timedelta, not {type(duration).__name__}"
        )
    value = duration / timedelta(milliseconds=1)
    if value < least:
        raise InvalidInput(field=name, problem=f"must be at least {least} ms")
    return value


def capability_set(capabilities: Iterable[str], name: str = "needs") -> frozenset[str]:
    """Check capabilities by the engine's rules, and return them as a set."""
    if isinstance(capabilities, str):
        raise InvalidInput(
            field=name, problem=f"must be a set of text, as in {{{capabilities!r}}}, not one text"
        )
    if not isinstance(capabilities, Iterable):
        raise InvalidInput(
            field=name, problem=f"must be a set of text, not {type(capabilities).__name__}"
        )
    tokens: set[str] = set()
    for token in capabilities:
        if not isinstance(token, str):
            raise InvalidInput(field=name, problem="required:non_string_token")
        if not token:
            raise InvalidInput(field=name, problem="required:empty_token")
        if "," in token:
            raise InvalidInput(field=name, problem=f"required:comma_in_token: {token!r}")
        if any(ch <= " " or ch == "\x7f" for ch in token):
            raise InvalidInput(field=name, problem=f"required:control_or_whitespace: {token!r}")
        if any("\ud800" <= ch <= "\udfff" for ch in token):
            raise InvalidInput(field=name, problem=f"required:invalid_unicode: {token!r}")
        tokens.add(token)
    if len(tokens) > 256:
        raise InvalidInput(field=name, problem="required:too_many_tokens: more than 256")
    if len(",".join(tokens).encode()) > 4096:
        raise InvalidInput(field=name, problem="required:too_many_bytes: more than 4096")
    return frozenset(tokens)
