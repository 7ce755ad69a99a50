"""Whether an error is retried, and when: the error itself, the policy's rules, HTTP headers."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from email.utils import format_datetime
from types import SimpleNamespace
from urllib.error import HTTPError

import httpx
import pytest

from flowfabric import GiveUp, InvalidInput, Retry, RetryAfter
from flowfabric.core.states import FailureClass
from flowfabric.tasks.failures import failure_of
from flowfabric.tasks.retry_rules import LONGEST_HEADER, Decision, decide

SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
AFTER_5 = Decision(True, timedelta(seconds=5))
OVERFLOWS = "-5 Feb 9999 24:61:61 999999999999999999999"
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
RESPECT = Retry(respect_retry_after=True)


def httpx_error(**headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://provider.example/")
    response = httpx.Response(429, headers=headers, request=request)
    return httpx.HTTPStatusError("429", request=request, response=response)


def urllib_error(value: str) -> HTTPError:
    headers = Message()
    headers["Retry-After"] = value
    return HTTPError("https://provider.example/", 429, "slow down", headers, None)


def shaped(**attributes: object) -> Exception:
    """An error with the attributes of another library's."""
    error = Exception("429")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("the provider is busy")
    error.__cause__ = cause
    return error


def broken_rule(error: BaseException, attempt: int) -> bool:
    raise LookupError("the rule itself")


def exiting_rule(error: BaseException, attempt: int) -> bool:
    raise SystemExit(3)


class NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("neither")


def deep_group() -> BaseException:
    error: Exception = ValueError()
    for _ in range(3000):
        error = ExceptionGroup("", [error])
    return error


async def awaited_rule(error: BaseException, attempt: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("error", "retry", "decision"),
    [
        (ValueError(), None, Decision(True)),
        (GiveUp("x"), None, Decision(False)),
        (GiveUp("x"), Retry(retry_on=GiveUp), Decision(False)),
        (RetryAfter(5), None, AFTER_5),
        (RetryAfter(timedelta(seconds=5)), Retry(never_on=Exception), AFTER_5),
        (RetryAfter(SOON), Retry(when=lambda error, attempt: False), Decision(True, at=SOON)),
        # the rule, asked after the classes
        (ValueError(), Retry(when=lambda error, attempt: attempt < 3), Decision(True)),
        (ValueError(), Retry(when=lambda error, attempt: attempt < 2), Decision(False)),
        (ValueError(), Retry(never_on=ValueError, when=lambda *_: True), Decision(False)),
        (ValueError(), Retry(when=broken_rule), Decision(True)),
        (ValueError(), Retry(when=exiting_rule), Decision(True)),
        (ValueError(), Retry(when=lambda *_: NoTruth()), Decision(True)),
        (deep_group(), Retry(), Decision(True)),
        (ValueError(), Retry(when=lambda *given: awaited_rule(*given)), Decision(True)),
        # groups: each must be retried, the longest wait counts
        (ExceptionGroup("", [RetryAfter(1), RetryAfter(5)]), None, AFTER_5),
        (ExceptionGroup("", [RetryAfter(1), ValueError()]), None, Decision(True)),
        (ExceptionGroup("", [RetryAfter(5), ValueError()]), Retry(), AFTER_5),
        (ExceptionGroup("", [RetryAfter(5), GiveUp()]), Retry(), Decision(False)),
        (ExceptionGroup("", [RetryAfter(5)]), Retry(never_on=ExceptionGroup), Decision(False)),
        # headers
        (httpx_error(**{"Retry-After": "5"}), Retry(), Decision(True)),
        (httpx_error(**{"Retry-After": "5"}), RESPECT, AFTER_5),
        (httpx_error(**{"retry-after": " 5 "}), RESPECT, AFTER_5),
        (httpx_error(), RESPECT, Decision(True)),
        (urllib_error("5"), RESPECT, AFTER_5),
        (shaped(headers={"Retry-After": "5"}), RESPECT, AFTER_5),
        (shaped(response=SimpleNamespace(headers={"Retry-After": 5})), RESPECT, AFTER_5),
        (caused_by(httpx_error(**{"Retry-After": "5"})), RESPECT, AFTER_5),
        (urllib_error(format_datetime(SOON, usegmt=True)), RESPECT, Decision(True, at=SOON)),
        (urllib_error("9" * 30), RESPECT, Decision(True, LONGEST_HEADER)),
        *[
            (urllib_error(hostile), RESPECT, Decision(True))
            for hostile in ("", "-5", "soon", "5.5", "٥", "1e9", "Fri, 32 Foo 9999", OVERFLOWS)
        ],
        (shaped(headers=7, response="text"), RESPECT, Decision(True)),
    ],
)
def test_an_error_and_a_policy_decide(error, retry, decision):
    assert decide(error, retry, 2) == decision


def test_a_date_far_away_counts_as_a_day():
    decision = decide(urllib_error("Fri, 31 Dec 9998 23:59:59 GMT"), RESPECT, 1)
    assert decision.seconds is not None
    assert decision.seconds <= LONGEST_HEADER.total_seconds()


@pytest.mark.parametrize(
    "bad",
    [
        True,
        "5",
        None,
        float("nan"),
        float("inf"),
        1e300,
        NAIVE,
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_a_time_that_means_nothing_is_refused(bad):
    with pytest.raises(InvalidInput) as refused:
        RetryAfter(bad)
    assert refused.value.field == "when"


@pytest.mark.parametrize("past", [-0.5, timedelta(days=-1), -1e300])
def test_a_duration_in_the_past_means_now(past):
    assert RetryAfter(past).delay == timedelta(0)


def test_a_time_before_the_calendar_means_now():
    at = RetryAfter(datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))).at
    assert at is not None
    assert at < datetime.now(UTC)


def test_a_failure_that_nobody_can_show_is_stored_all_the_same():
    assert failure_of(deep_group(), retry=Retry()).kind is FailureClass.TRANSIENT


@pytest.mark.parametrize("bad", [7, "often", awaited_rule])
def test_a_rule_is_a_plain_function(bad):
    with pytest.raises(InvalidInput) as refused:
        Retry(when=bad)
    assert refused.value.field == "retry.when"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RetryAfter(2.5), "try again in 2.5 s"),
        (RetryAfter(60, "429 from the provider"), "429 from the provider (try again in 60 s)"),
        (
            RetryAfter(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
            "try again at 2030-01-01T00:00:00+00:00",
        ),
    ],
)
def test_the_text_of_an_error_says_when(error, text):
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text
