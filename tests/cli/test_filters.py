"""The filter language: what it understands, and what it says about the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.client.filters import Where, from_flags, parse
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import ExecutionFilter
from flowfabric.core.states import PublicState

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("state=failed", {"states": (PublicState.FAILED,)}),
        (
            "state=failed,cancelled lane=mail",
            {"states": (PublicState.FAILED, PublicState.CANCELLED), "lanes": ("mail",)},
        ),
        ("State=FAILED,failed", {"states": (PublicState.FAILED,)}),
        ("task=app.send,app.print", {"tasks": ("app.send", "app.print")}),
        ("tag.team.name=x", {"tags": {"team.name": "x"}}),
        ("tag.team.name='a b' tag.team.b=1,2=3", {"tags": {"team.name": "a b", "team.b": "1,2=3"}}),
        ("tag.team.name=", {"tags": {"team.name": ""}}),
        ("worker=pool-1", {"worker_instance_id": "pool-1"}),
        ("task=shop.*,mail.s?nd", {"tasks": ("shop.*", "mail.s?nd")}),
        ("key='order 7,8'", {"key": "order 7,8"}),
        ("parent=3f5a6b7c8d9e", {"parent": "3f5a6b7c8d9e"}),
        ("error=shop.CardDeclined", {"error": "shop.CardDeclined"}),
        ("held=yes crash_looping=No", {"is_held": True, "is_crash_loop": False}),
        ('lane="two words"', {"lanes": ("two words",)}),
        ("  state=failed \n lane=a ", {"states": (PublicState.FAILED,), "lanes": ("a",)}),
    ],
)
def test_conditions_are_understood(text, expected):
    found = parse(text).resolved(NOW)
    assert found == ExecutionFilter(**expected)
    found.check()


@pytest.mark.parametrize(
    ("text", "field", "hours"),
    [
        ("created<2h", "created_after", 2),
        ("created>2h", "created_before", 2),
        ("age<2h", "created_after", 2),
        ("age>2h", "created_before", 2),
        ("ended<120m", "ended_after", 2),
        ("ended>120m", "ended_before", 2),
        ("ended>2026-05-01T10:00:00Z", "ended_after", 2),
        ("ended<2026-05-01T10:00:00Z", "ended_before", 2),
        ("created>2026-05-01T10:00:00Z", "created_after", 2),
        ("created<2026-05-01T11:00:00+02:00", "created_before", 3),
    ],
)
def test_times_count_back_from_now(text, field, hours):
    found = parse(text).resolved(NOW)
    assert found == ExecutionFilter(**{field: NOW - timedelta(hours=hours)})


def test_several_texts_are_one_filter():
    assert parse(["state=failed", "lane=a age>1h"]) == parse("state=failed lane=a age>1h")
    assert parse([]).is_everything
    assert parse(" ").is_everything
    assert not parse("age>1h").is_everything


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("state=runing", "did you mean active?"),
        ("state=faild", "did you mean failed?"),
        ("state=done", "did you mean completed?"),
        ("state=zzz", "use one of waiting, delayed"),
        ("sate=failed", "did you mean state?"),
        ("lanes=mail", "did you mean lane?"),
        ("zzz=1", "use state, lane, task, tag.team.name"),
        ("tag=x", "did you mean tag.team.name?"),
        ("tag.name=x", "not of the form team.field"),
        ("failed", "is not a condition"),
        ("=failed", "is not a condition"),
        ("state", "is not a condition"),
        ("state=", "the value is missing"),
        ("state=failed,", "a value before or after a comma is missing"),
        ("state!=failed", "only state=... is allowed"),
        ("lane>mail", "only lane=... is allowed"),
        ("age=2h", "only age< and age> are allowed"),
        ("created>=2h", "only created< and created> are allowed"),
        ("ended=2h", "only ended< and ended> are allowed"),
        ("age>yesterday", "must be a duration such as 10m, or an ISO time"),
        ("age>2026-01-01", "must look like 30s"),
        ("age>9999999999d", "must be a duration such as 10m"),
        ("state=failed state=expired", "given twice"),
        ("age>1h created>2h", "created before: is given twice"),
        ("tag.team.a=1 tag.team.a=2", "given twice"),
        ("lane='a", "no closing quotation"),
        ("parent=nobody", "'nobody' is not an id"),
        ("held=maybe", "use yes or no"),
        ("key=a key=b", "given twice"),
        ("heldd=yes", "did you mean held?"),
        ("lane=caf\u00e9", "printable ASCII"),
    ],
)
def test_what_is_wrong_is_named(text, told):
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    assert told in str(caught.value)


def test_flags_say_the_same_as_conditions():
    flags = from_flags(
        None,
        states=["failed,expired"],
        lanes=["mail", "print"],
        tasks=["app.send"],
        tags=["team.a=1", "team.b=x=y"],
        since="2h",
    )
    text = "state=failed,expired lane=mail,print task=app.send tag.team.a=1 tag.team.b=x=y age<2h"
    assert flags == parse(text)
    assert from_flags(["lane=a"], states=["failed"]) == parse("lane=a state=failed")
    # A lane of that name cannot be said in the language.
    assert from_flags(None, lanes=["a,b"]).lanes == ("a,b",)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"states": ["failed"]}, "given twice"),
        ({"since": "1h"}, "given twice"),
        ({"tags": ["team.a=1"]}, "given twice"),
        ({"tags": ["team.b"]}, "team.name=value"),
        ({"lanes": [""]}, "lane: must not be empty"),
    ],
)
def test_flags_that_do_not_fit_are_named(flags, told):
    with pytest.raises(InvalidInput, match=told):
        from_flags(["state=failed tag.team.a=1 created<1d"], **flags)


def test_a_filter_tells_how_it_was_understood():
    where = parse("state=failed,expired lane=a age>90m tag.team.a=1 ended>2026-05-01T00:00:00Z")
    assert str(where) == (
        "state=failed,expired; lane=a; tag.team.a=1; created before 1h30m ago; "
        "ended since 2026-05-01 00:00:00 UTC"
    )
    assert str(Where()) == "everything"
