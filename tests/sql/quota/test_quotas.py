"""Quotas: creating, declaring, setting, lifting, listing and deleting them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.admission import Admission
from support.database import home
from support.factories import refused


@pytest.fixture
def admission(engine):
    return Admission(engine, has_all=True)


async def test_a_quota_is_created_once(admission):
    made = await admission.one("create_quota", quota="api", concurrency=2)
    again = await admission.one("create_quota", quota="api", concurrency=9)

    assert (made["outcome"], made["concurrency"]) == ("created", 2)
    assert (again["outcome"], again["concurrency"]) == ("already_satisfied", 2)


async def test_the_limits_of_a_quota_are_read_back(admission):
    await admission.one(
        "create_quota", quota="api", rate=100, rate_window=timedelta(minutes=1), concurrency=7
    )

    (quota,) = await admission.call("list_quotas", quota="api")

    assert (quota["concurrency"], quota["rate"]) == (7, 100)
    assert quota["rate_window"] == timedelta(minutes=1)
    assert (quota["is_keyed"], quota["is_set"], quota["overflow"]) == (False, False, "queue")


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("quota", {"quota": "two words"}),
        ("quota", {"quota": ""}),
        ("concurrency", {"quota": "api", "concurrency": 0}),
        ("rate", {"quota": "api", "rate": 0, "rate_window": timedelta(seconds=1)}),
        ("rate", {"quota": "api", "rate_window": timedelta(seconds=1)}),
        ("rate_window", {"quota": "api", "rate": 5}),
        ("rate_window", {"quota": "api", "rate": 5, "rate_window": timedelta(0)}),
        ("overflow", {"quota": "api", "concurrency": 1, "overflow": "drop"}),
    ],
)
async def test_a_bad_limit_is_refused_by_field(admission, field, arguments):
    with refused("WF001", field=field):
        await admission.one("create_quota", **arguments)
    assert await admission.call("list_quotas") == []


async def test_a_gate_is_registered_once_for_each_key(admission):
    first = await admission.quota("tenant", "acme", concurrency=2)
    other = await admission.quota("tenant", "initech", concurrency=2)

    assert first != other
    assert await admission.quota("tenant", "acme", concurrency=2) == first
    gates = await admission.call("list_gates", partition_key=home(), quota="tenant")
    assert [gate["key"] for gate in gates] == ["acme", "initech"]
    assert {gate["concurrency"] for gate in gates} == {2}


async def test_a_quota_has_keys_or_has_none(admission):
    await admission.quota("tenant", "acme", concurrency=2)
    await admission.quota("api", concurrency=2)

    (without,) = await admission.register({"kind": "quota", "name": "tenant"})
    (with_key,) = await admission.register({"kind": "quota", "name": "api", "key": "acme"})

    assert (without["outcome"], with_key["outcome"]) == ("invalid", "invalid")
    assert "'key'" in str(without["detail"]).replace('"', "'")


async def test_a_quota_with_keys_is_declared_without_a_key(admission):
    gate = {"kind": "quota", "name": "tenant", "is_keyed": True}
    (declared,) = await admission.register({**gate, "concurrency": 2})
    assert (declared["outcome"], declared["gate_id"]) == ("registered", None)
    await admission.quota("tenant", "acme", concurrency=2)
    await admission.register({**gate, "concurrency": 5})
    (counter,) = await admission.call("list_gates", partition_key=home(), quota="tenant")
    assert (counter["key"], counter["concurrency"]) == ("acme", 5)

    await admission.quota("api", concurrency=2)
    (without,) = await admission.register({**gate, "name": "api"})
    (wrong,) = await admission.register({**gate, "is_keyed": "yes"})
    assert (without["outcome"], wrong["outcome"]) == ("invalid", "invalid")


async def test_a_quota_that_nobody_declared_is_not_found(admission):
    (answer,) = await admission.register({"kind": "quota", "name": "api"})
    assert (answer["outcome"], answer["gate_id"]) == ("quota_not_found", None)
    with refused("WF306"):
        await admission.one("set_quota", quota="api", concurrency=1)


async def test_what_an_operator_set_wins_over_code_until_it_is_lifted(admission):
    await admission.quota(concurrency=2)
    await admission.one("set_quota", quota="api", concurrency=5, actor="ann")
    await admission.quota(concurrency=3)

    assert (await admission.gate())["concurrency"] == 5
    (quota,) = await admission.call("list_quotas")
    assert (quota["concurrency"], quota["declared_concurrency"]) == (5, 3)
    assert (quota["is_set"], quota["changed_by"]) == (True, "ann")

    lifted = await admission.one("lift_quota", quota="api")
    assert (lifted["outcome"], lifted["concurrency"]) == ("lifted", 3)
    assert (await admission.gate())["concurrency"] == 3
    assert (await admission.one("lift_quota", quota="api"))["outcome"] == "unchanged"


async def test_a_limit_for_one_key_wins_over_one_for_all(admission):
    await admission.quota("tenant", "acme", concurrency=2)
    await admission.quota("tenant", "initech", concurrency=2)
    await admission.one("set_quota", quota="tenant", key="acme", concurrency=9)
    await admission.one("set_quota", quota="tenant", concurrency=4)

    gates = await admission.call("list_gates", partition_key=home(), quota="tenant")
    assert [gate["concurrency"] for gate in gates] == [9, 4]


async def test_setting_one_limit_keeps_the_other(admission):
    await admission.quota(concurrency=2, rate=10, rate_window_ms=1000)
    await admission.one("set_quota", quota="api", concurrency=5)
    assert (await admission.gate())["rate"] == 10
    await admission.one("set_quota", quota="api", clear=["rate"])
    gate = await admission.gate()
    assert (gate["concurrency"], gate["rate"], gate["rate_window"]) == (5, None, None)


async def test_a_deleted_quota_limits_nothing_and_comes_back_with_its_counters(admission, engine):
    gate = await admission.quota(concurrency=1)
    assert (await admission.one("delete_quota", quota="api"))["outcome"] == "deleted"
    assert (await admission.one("delete_quota", quota="api"))["outcome"] == "unchanged"
    assert await admission.call("list_quotas") == []
    assert await admission.quota(concurrency=3) == gate
    assert (await admission.gate())["concurrency"] == 3


async def test_an_unknown_gate_is_told_and_nothing_is_stored(admission, engine):
    (answer,) = await admission.submit(quotas=[12345])
    assert (answer.word, answer.detail) == ("unknown_gate", {"gate_ids": ["12345"]})
    assert await engine.rows() == []


async def test_the_gate_of_another_namespace_is_unknown(admission, engine):
    theirs = Admission(engine.within("theirs"))
    gate = await theirs.quota(concurrency=1)
    (answer,) = await admission.submit(quotas=[gate])
    assert answer.word == "unknown_gate"


async def test_a_submission_keeps_its_gates_sorted(admission, engine):
    ids = [await admission.quota(f"q{n}", concurrency=1) for n in range(3)]
    budget = await admission.budget(usd=5)
    (answer,) = await admission.submit(quotas=sorted(ids, reverse=True), budgets=[budget])
    stored = await engine.connection.fetchrow(
        "select quota_ids, budget_ids, line_id from ff.execution where execution_id = $1", answer.id
    )
    assert tuple(stored) == (sorted(ids), [budget], None)
