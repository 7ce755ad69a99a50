"""Decides in the worker whether an error is retried, and how long to wait."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from flowfabric.core.errors import WaitTimeout
from flowfabric.core.policy import Retry, names_groups
from flowfabric.core.retry_errors import GiveUp, RetryAfter
from flowfabric.telemetry import WORKER_LOGGER

# A Retry-After header with a longer wait is cut to this.
LONGEST_HEADER = timedelta(days=1)
# How many causes of an error are searched for a Retry-After header.
_CAUSES = 5


@dataclass(frozen=True, slots=True)
class Decision:
    """Says whether a retry is allowed after an error, and when: after `delay`, or at the time `at`.

    If both are None, the back-off of the retry policy applies. The decision does not depend on how
    many retries are left.
    """

    is_allowed: bool
    delay: timedelta | None = None
    at: datetime | None = None

    @property
    def seconds(self) -> float | None:
        """The seconds until the retry. None means that the retry policy decides about the delay."""
        if self.at is not None:
            return max((self.at - datetime.now(UTC)).total_seconds(), 0.0)
        return None if self.delay is None else self.delay.total_seconds()


NO = Decision(False)
YES = Decision(True)


def decide(error: BaseException, retry: Retry | None, attempt: int) -> Decision:
    """Decide whether an error is retried: by its class (such as GiveUp), then by the retry policy.

    `attempt` counts from 1. This function never raises, because otherwise the execution would
    neither end nor be released.
    """
    try:
        return _decide(error, retry, attempt)
    except Exception:
        WORKER_LOGGER.exception("retry rules failed, the retry policy decides without them")
        return YES


def _decide(error: BaseException, retry: Retry | None, attempt: int) -> Decision:
    if isinstance(error, GiveUp):
        return NO
    if isinstance(error, WaitTimeout) and not _names(retry, type(error)):
        # A retry would wait for the same time again, so retry only if the retry policy names this
        # error.
        return NO
    if isinstance(error, RetryAfter):
        return Decision(True, error.delay, error.at)
    if isinstance(error, BaseExceptionGroup) and not (retry and names_groups(retry.retry_on)):
        if retry is not None and isinstance(error, retry.never_on):
            return NO
        return _decide_together([_decide(one, retry, attempt) for one in error.exceptions], retry)
    if retry is None:
        return YES
    if not retry.allows(error) or not _is_allowed_by_rule(error, retry, attempt):
        return NO
    return _header_of(error) if retry.respect_retry_after else YES


def _names(retry: Retry | None, kind: type[BaseException]) -> bool:
    """Tell whether the retry policy names exactly this class of error in `retry_on`."""
    if retry is None:
        return False
    named = retry.retry_on if isinstance(retry.retry_on, tuple) else (retry.retry_on,)
    return kind in named


def _decide_together(members: Sequence[Decision], retry: Retry | None) -> Decision:
    """Decide about an `ExceptionGroup` from the decisions about its exceptions.

    A retry is allowed if all of them allow it. The longest delay that one of them asks for then
    applies; without a retry policy, it applies only if all of them ask for a delay.
    """
    if not all(member.is_allowed for member in members):
        return NO
    waits = [member for member in members if member.seconds is not None]
    if not waits or (retry is None and len(waits) < len(members)):
        return YES
    return max(waits, key=lambda member: member.seconds or 0.0)


def _is_allowed_by_rule(error: BaseException, retry: Retry, attempt: int) -> bool:
    if retry.when is None:
        return True
    try:
        answer: Any = retry.when(error, attempt)
        if inspect.iscoroutine(answer):
            answer.close()
            raise TypeError("it returned a coroutine; it must return True or False")
        return bool(answer)
    except (Exception, SystemExit):
        # A broken rule must not end the worker. It must not end an execution either.
        WORKER_LOGGER.exception("retry rule failed, the error may be retried: %r", retry.when)
        return True


def _header_of(error: BaseException) -> Decision:
    """Read the Retry-After header of an HTTP error, or of one of its causes."""
    seen: BaseException | None = error
    for _ in range(_CAUSES):
        if seen is None:
            break
        if (text := _header_text(seen)) is not None:
            return _parse_header(text)
        seen = seen.__cause__
    return YES


def _header_text(error: BaseException) -> str | None:
    """Read Retry-After from `error.response` (httpx, requests) or `error` (aiohttp, urllib)."""
    try:
        for holder in (getattr(error, "response", None), error):
            headers = getattr(holder, "headers", None)
            if headers is not None and (text := headers.get("Retry-After")) is not None:
                return str(text)
    except Exception as broken:
        # The class only looks like an HTTP error, and its code may raise anything.
        WORKER_LOGGER.debug("headers of %s not read: %r", type(error).__name__, broken)
    return None


def _parse_header(text: str) -> Decision:
    text = text.strip()
    if text.isascii() and text.isdigit():
        # Longer numbers exceed our limit, and timedelta does not accept them.
        seconds = int(text[:9]) if len(text) <= 9 else 10**9
        return Decision(True, min(timedelta(seconds=seconds), LONGEST_HEADER))
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return YES
    return Decision(True, at=min(at, datetime.now(UTC) + LONGEST_HEADER))
