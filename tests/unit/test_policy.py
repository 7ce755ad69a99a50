"""Policies, capabilities, tags and lanes: what is sent, and what is refused before it is sent."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, check_lane, check_name, check_tags, check_text
from flowfabric.core.policy import Exponential, Fixed, Retry, capability_set, policy_json

# Policies


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, None),
        (
            {"retry": Retry()},
            {
                "retry_policy": {
                    "max_retries": 3,
                    "backoff": {
                        "type": "exponential",
                        "initial_delay_ms": 1000,
                        "max_delay_ms": 60000,
                        "multiplier": 2.0,
                        "jitter": True,
                    },
                }
            },
        ),
        (
            {"retry": Retry(max_retries=0, backoff=Fixed(timedelta(seconds=2.5)))},
            {
                "retry_policy": {
                    "max_retries": 0,
                    "backoff": {"type": "fixed", "delay_ms": 2500},
                }
            },
        ),
        (
            {"timeout": timedelta(minutes=2)},
            {"timeout_policy": {"attempt_timeout_ms": 120000}},
        ),
        (
            {"retry": Retry(1, Fixed(timedelta(0))), "timeout": timedelta(milliseconds=1)},
            {
                "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}},
                "timeout_policy": {"attempt_timeout_ms": 1},
            },
        ),
    ],
)
def test_the_document_of_a_policy(given, stored):
    text = policy_json(**given)
    assert (json.loads(text) if text is not None else None) == stored


def test_what_is_not_set_is_left_out():
    """Unset fields are omitted, never written as null."""
    assert "null" not in (policy_json(retry=Retry(), timeout=timedelta(1)) or "")


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        (Retry(max_retries=-1), "retry.max_retries"),
        (Retry(max_retries=1_000_001), "retry.max_retries"),
        (Retry(max_retries=True), "retry.max_retries"),
        (Retry(max_retries=2.0), "retry.max_retries"),  # type: ignore[arg-type]
        (Retry(backoff=Exponential(multiplier=0.5)), "retry.backoff.multiplier"),
        (Retry(backoff=Exponential(multiplier=1001)), "retry.backoff.multiplier"),
        (Retry(backoff=Exponential(multiplier=float("nan"))), "retry.backoff.multiplier"),
        (Retry(backoff=Exponential(initial=timedelta(seconds=-1))), "retry.backoff.initial"),
        (Retry(backoff=Exponential(maximum=timedelta(seconds=-1))), "retry.backoff.maximum"),
        (Retry(backoff=Exponential(initial=1)), "retry.backoff.initial"),  # type: ignore[arg-type]
        (Retry(backoff=Fixed(timedelta(seconds=-1))), "delay"),
    ],
)
def test_a_policy_that_makes_no_sense(retry, field):
    with pytest.raises(InvalidInput) as caught:
        policy_json(retry=retry)
    assert caught.value.field == field


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), 30])
def test_a_timeout_that_makes_no_sense(timeout):
    with pytest.raises(InvalidInput, match="timeout"):
        policy_json(timeout=timeout)


# Capabilities


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), set()),
        ({"gpu"}, {"gpu"}),
        (["gpu", "cuda", "gpu"], {"gpu", "cuda"}),
        (("torch>=2.3",), {"torch>=2.3"}),
        (["GPU", "gpu"], {"GPU", "gpu"}),
        (["größe", "日本"], {"größe", "日本"}),
        (["\x80"], {"\x80"}),
        ([str(n) for n in range(256)], {str(n) for n in range(256)}),
        (["x" * 4096], {"x" * 4096}),
        (["x" * 4094, "y"], {"x" * 4094, "y"}),
    ],
)
def test_capabilities_that_can_be_stored(given, found):
    assert capability_set(given) == frozenset(found)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([None], "required:non_string_token"),
        ([3], "required:non_string_token"),
        ([{}], "required:non_string_token"),
        ([""], "required:empty_token"),
        (["gpu", ""], "required:empty_token"),
        (["gpu,cuda"], "required:comma_in_token"),
        (["a b"], "required:control_or_whitespace"),
        (["a\tb"], "required:control_or_whitespace"),
        (["a\n"], "required:control_or_whitespace"),
        (["\x00"], "required:control_or_whitespace"),
        (["\x20"], "required:control_or_whitespace"),
        (["\x7f"], "required:control_or_whitespace"),
        ([str(n) for n in range(257)], "required:too_many_tokens"),
        (["x" * 4097], "required:too_many_bytes"),
        (["x" * 4095, "y"], "required:too_many_bytes"),
        (["ö" * 2049], "required:too_many_bytes"),
    ],
)
def test_capabilities_fail_closed(given, problem):
    """An unreadable requirement must not become an empty one, which anybody fulfils."""
    with pytest.raises(InvalidInput) as caught:
        capability_set(given)
    assert caught.value.field == "needs"
    assert caught.value.problem.startswith(problem)


def test_one_text_is_not_a_set_of_letters():
    with pytest.raises(InvalidInput, match="must be a set of text"):
        capability_set("gpu")


# Tags


@pytest.mark.parametrize(
    "key",
    ["cairn.session_id", "a.b", "a1_2.x", "app.sub.field", "a._", "a.0", "a.b.", "a.b..c", "a_.b"],
)
def test_tag_keys_that_are_accepted(key):
    check_tags({key: "any text, ünïcode and \n too"})


@pytest.mark.parametrize(
    "key",
    [
        "",
        "Cairn.x",
        "1cairn.x",
        "cairn",
        "cairn.",
        "cairn..x",
        ".cairn",
        "cair n.x",
        "ca-irn.x",
        "cairn.Foo",
        "cairn.foo bar",
        'cairn.foo"bar',
        "cairn.foo-bar",
        "cairn.foo\\bar",
        "cairn.x\n",
        "_cairn.x",
        "cäirn.x",
        7,
    ],
)
def test_tag_keys_that_are_rejected(key):
    with pytest.raises(InvalidInput) as caught:
        check_tags({key: "x"})
    assert caught.value.field == "tags"
    assert repr(key) in caught.value.problem


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({f"a.k{n}": "" for n in range(65)}, "at most 64"),
        ({"a.b": "x" * 1025}, "at most 1024 bytes"),
        ({"a.b": "ö" * 513}, "at most 1024 bytes"),
        ({"a.b": 1}, "must be text"),
        ({"a.b": None}, "must be text"),
        ({"a.b": "x\x00"}, "NUL"),
        ([("a.b", "c")], "must be a mapping"),
    ],
)
def test_tags_that_are_rejected(tags, problem):
    with pytest.raises(InvalidInput, match=problem):
        check_tags(tags)


def test_a_tag_value_that_is_no_unicode_is_rejected():
    """A lone surrogate cannot be sent to the database."""
    with pytest.raises(InvalidInput):
        check_tags({"a.b": "\ud800"})


def test_the_largest_tags_are_accepted():
    check_tags({f"a.k{n}": "x" * 1024 for n in range(64)})


# Lanes and names


@pytest.mark.parametrize("lane", ["default", "a", " ", "~", "mail and more", "x" * 64, "{fp:0}"])
def test_lanes_that_are_accepted(lane):
    check_lane(lane)


@pytest.mark.parametrize(
    ("lane", "problem"),
    [
        ("", "must not be empty"),
        ("x" * 65, "is 65 bytes long; at most 64"),
        ("ö" * 33, "is 66 bytes long; at most 64"),
        ("a\tb", "byte 1 is 0x09"),
        ("\x1f", "byte 0 is 0x1f"),
        ("ab\x7f", "byte 2 is 0x7f"),
        ("abcö", "byte 3 is 0xc3"),
        ("a\x00b\x00", "byte 1 is 0x00"),
        (None, "must be text, not NoneType"),
        (b"mail", "must be text, not bytes"),
    ],
)
def test_lanes_that_are_rejected(lane, problem):
    """Empty, too long with its length, or not printable with the index of the first bad byte."""
    with pytest.raises(InvalidInput) as caught:
        check_lane(lane)
    assert caught.value.field == "lane"
    assert problem in caught.value.problem


def test_a_lane_that_is_no_unicode_is_rejected():
    with pytest.raises(InvalidInput):
        check_lane("mail\ud800")


@pytest.mark.parametrize("name", ["x", "tests.work", "ns/1", "日本", "x" * 256])
def test_names_that_are_accepted(name):
    check_name("task", name)
    Route(name, "default", name).check()


@pytest.mark.parametrize(
    "name", ["", "a b", "a\n", "\x00", "\x7f", "x" * 257, "ö" * 129, None, 7, "\ud800"]
)
def test_names_that_are_rejected(name):
    with pytest.raises(InvalidInput) as caught:
        check_name("task", name)
    assert caught.value.field == "task"


@pytest.mark.parametrize(("text", "most"), [("x" * 10, 10), ("ö" * 5, 10), ("a b\n", 10)])
def test_texts_that_are_accepted(text, most):
    check_text("key", text, most)


@pytest.mark.parametrize(("text", "most"), [("", 10), ("x" * 11, 10), ("ö" * 6, 10), ("\x00", 9)])
def test_texts_that_are_rejected(text, most):
    with pytest.raises(InvalidInput, match="key"):
        check_text("key", text, most)
