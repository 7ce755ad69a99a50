"""What is stored about a failed attempt, whatever the exception looks like."""

from __future__ import annotations

import json

import pytest

from flowfabric.core.states import FailureClass
from flowfabric.core.trace import facts_of
from flowfabric.tasks.failures import failure_of

# The limits of ff.fail_executions.
REASON_BYTES = 256
CATEGORY_BYTES = 256
DETAIL_BYTES = 65_536


def raised(error: BaseException) -> BaseException:
    """The exception as a handler would raise it, with a trace."""
    try:
        raise error
    except BaseException as caught:
        return caught


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("even the message is broken")

    __repr__ = __str__


LONG_NAME = type("Überlauf" * 40, (Exception,), {"__module__": "modül"})
ODD_NAME = type("Odd\nName\x7f", (Exception,), {})

ODD = {
    "plain": ValueError("it broke"),
    "empty": ValueError(),
    "lines": ValueError("one\ntwo\r\nthree\ttabs"),
    "nul": ValueError("a\x00b\x1b[31mred\x7f"),
    "invisible": ValueError("a\x85\x9b\u202e\u2028\u2029b"),
    "surrogates": ValueError("bad \ud800\udfff text"),
    "megabyte": ValueError("x" * 1_000_000),
    "megabyte of accents": ValueError("é" * 1_000_000),
    "megabyte beyond the basic plane": ValueError("🙂" * 1_000_000),
    "megabyte of lines": ValueError("line\n" * 200_000),
    "bytes": UnicodeDecodeError("utf-8", b"\xff" * 1000, 0, 1, "invalid start byte"),
    "system exit": SystemExit(3),
    "no message at all": Mute(),
    "long name": LONG_NAME("why"),
    "odd name": ODD_NAME("why"),
    "key error": KeyError("k\n" * 10_000),
    "group": ExceptionGroup("several", [ValueError(str(n)) for n in range(1000)]),
}


@pytest.mark.parametrize("name", ODD)
def test_every_exception_becomes_something_that_the_engine_stores(name):
    failure = failure_of(raised(ODD[name]))

    assert failure.kind is FailureClass.TRANSIENT
    assert 1 <= len(failure.reason.encode()) <= REASON_BYTES
    assert failure.reason.isprintable()
    assert failure.category is not None
    assert 1 <= len(failure.category.encode()) <= CATEGORY_BYTES
    assert failure.category.isprintable()
    assert failure.detail is not None
    assert len(failure.detail) <= DETAIL_BYTES
    facts = json.loads(failure.detail.decode())
    assert facts.keys() == {"type", "message", "trace", "library"}
    for text in facts.values():
        assert text.translate({ord("\n"): None, ord("\t"): None}).isprintable()
        text.encode()


def test_the_reason_is_one_line_with_type_and_message():
    assert failure_of(raised(ValueError("one\ntwo"))).reason == "ValueError: one two"


def test_an_exception_without_a_message_is_named():
    assert failure_of(raised(ValueError())).reason == "ValueError"


def test_the_facts_say_type_message_and_trace():
    facts = facts_of(failure_of(raised(json.JSONDecodeError("no", "doc", 1))).detail)

    assert facts["type"] == "json.decoder.JSONDecodeError"
    assert facts["message"] == "no: line 1 column 2 (char 1)"
    assert "in raised" in facts["trace"]
    assert "raise error\n" in facts["trace"]


def test_the_end_of_a_long_trace_is_kept_because_it_says_where():
    def deeper(n: int) -> None:
        if n == 0:
            raise ValueError("at the bottom")
        try:
            deeper(n - 1)
        except ValueError as error:
            raise ValueError(f"level {n} " + "x" * 2000) from error

    with pytest.raises(ValueError, match="level 30") as caught:
        deeper(30)

    assert "level 30" in facts_of(failure_of(caught.value).detail)["trace"]


@pytest.mark.parametrize(
    "detail", [b"not json", b"\xff\xfe", b"[1]", b'"text"', b"null", b"", b"[" * 20_000]
)
def test_a_detail_that_others_wrote_is_shown_as_far_as_it_goes(detail):
    facts = facts_of(detail)

    assert isinstance(facts["message"], str)


def test_nothing_stored_gives_no_facts():
    assert facts_of(None) == {}
