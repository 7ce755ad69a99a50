"""The options of a lane: its limit, and the turns of its keys."""

from __future__ import annotations

import json

import pytest

from flowfabric.core.why import SENTENCES
from support.admission import Admission, in_one_partition
from support.database import home
from support.factories import Item, refused


async def set_options(engine, options, lane="mail", **changes):
    given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(changes, 4))
    return await engine.connection.fetchrow(
        "select outcome, options, is_set from ff.set_lane_options("
        f"$1, $2, $3::jsonb{', ' if given else ''}{given})",
        engine.namespace,
        lane,
        None if options is None else json.dumps(options),
        *changes.values(),
    )


async def fill(engine, count, lane="mail", **changes):
    route = await engine.register(lane=lane)
    return [one.id for one in await engine.submit_many([Item(route=route, **changes)] * count)]


async def claim(engine, limit=10, **arguments):
    return await engine.claim(limit, **arguments)


@in_one_partition
async def test_no_more_of_a_lane_run_than_its_limit(engine):
    """Also of what was submitted before the limit was set."""
    before = await fill(engine, 3)
    other = await fill(engine, 1, lane="other")
    assert (await set_options(engine, {"concurrency": 2}))["outcome"] == "changed"
    await fill(engine, 3)

    leases = await claim(engine)

    assert [one.execution_id for one in leases if one.execution_id in before] == before[:2]
    assert [one.execution_id for one in leases if one.execution_id not in before] == other
    assert await claim(engine) == []
    await engine.complete(leases[0])
    (third,) = await claim(engine)
    assert third.execution_id == before[2]


@in_one_partition
async def test_a_limited_lane_is_claimed_in_order_and_drains(engine):
    await fill(engine, 1)
    await set_options(engine, {"concurrency": 3})
    ids = await fill(engine, 40)
    done = []
    while leases := await claim(engine, 7):
        assert len(leases) <= 3
        done += [one.execution_id for one in leases]
        await engine.complete_many(leases)
    assert done[1:] == ids


@in_one_partition
async def test_the_rate_of_a_lane_counts_starts(engine, clock):
    await clock.freeze()
    await fill(engine, 5)
    await set_options(engine, {"rate": 2, "rate_window_ms": 60_000})
    first = await claim(engine)
    assert len(first) == 2
    await engine.complete_many(first)
    assert await claim(engine) == []
    await clock.advance(seconds=62)
    assert len(await claim(engine)) == 2


@in_one_partition
async def test_a_full_lane_delays_no_other(engine):
    await fill(engine, 50, priority=9)
    other = await fill(engine, 1, lane="other")
    await set_options(engine, {"concurrency": 1})
    await engine.take()
    assert [one.execution_id for one in await claim(engine, 5)] == other


@in_one_partition
async def test_a_grant_takes_a_slot_of_the_lane_or_is_refused(engine):
    first, second = await fill(engine, 2)
    await set_options(engine, {"concurrency": 1})
    await engine.use(await engine.grant(first))
    grant = await engine.grant(second)
    with refused("WF205"):
        await engine.use(grant)


@in_one_partition
async def test_the_limit_of_a_lane_stands_beside_those_of_tasks(engine):
    admission = Admission(engine)
    gate = await admission.quota(concurrency=1)
    await fill(engine, 1)
    await set_options(engine, {"concurrency": 2})
    route = await engine.register(lane="mail")
    await admission.submit(3, quotas=[gate], route=route)
    assert len(await claim(engine)) == 2


@in_one_partition
async def test_lifting_the_limit_opens_the_lane(engine):
    await fill(engine, 4)
    await set_options(engine, {"concurrency": 1})
    assert len(await claim(engine)) == 1
    answer = await set_options(engine, None)
    assert (answer["outcome"], answer["is_set"]) == ("changed", False)
    assert len(await claim(engine)) == 3


@in_one_partition
async def test_what_waits_for_its_lane_is_explained(engine):
    await fill(engine, 2)
    await set_options(engine, {"concurrency": 1})
    await claim(engine)
    ((evidence,),) = await engine.connection.fetch(
        "select x.evidence from ff.execution e, "
        f"ff.explain_execution('{home()}', $1, e.execution_id) x where x.code = 'waits_for_quota'",
        engine.namespace,
    )
    told = SENTENCES["waits_for_quota"](json.loads(evidence))
    assert told == "It waits for the limit of the lane mail: 1 of 1 running; it is first in line."


async def test_what_an_operator_sets_wins_over_code_until_it_is_lifted(engine):
    declared = {"concurrency": 5, "fair_by": "tenant"}
    await set_options(engine, declared, is_declared=True)
    await set_options(engine, {"concurrency": 2, "weights": {"acme": 3}})
    await set_options(engine, declared | {"concurrency": 9}, is_declared=True)
    row = await engine.connection.fetchrow(
        "select concurrency, fair_by, weights, is_set from ff.list_lanes($1, 'mail')",
        engine.namespace,
    )
    assert tuple(row) == (2, "tenant", '{"acme": 3}', True)
    await set_options(engine, {"concurrency": None})
    row = await engine.connection.fetchrow(
        "select concurrency, weights from ff.list_lanes($1, 'mail')", engine.namespace
    )
    assert tuple(row) == (None, '{"acme": 3}')
    await set_options(engine, None)
    row = await engine.connection.fetchrow(
        "select concurrency, weights, is_set from ff.list_lanes($1, 'mail')", engine.namespace
    )
    assert tuple(row) == (9, None, False)
    assert (await set_options(engine, None))["outcome"] == "unchanged"


async def test_a_key_with_a_weight_gets_more_turns(engine):
    await fill(engine, 1)
    await set_options(engine, {"weights": {"big": 3}})
    big = set(await fill(engine, 60, fair_key="big"))
    small = set(await fill(engine, 60, fair_key="small"))
    leases = await claim(engine, 41)
    got = [one.execution_id for one in leases]
    assert 28 <= len(big & set(got)) <= 32
    assert 8 <= len(small & set(got)) <= 12


@pytest.mark.parametrize(
    ("field", "options", "changes"),
    [
        ("options", [], {}),
        ("colour", {"colour": 1}, {}),
        ("concurrency", {"concurrency": 0}, {}),
        ("concurrency", {"concurrency": 1.5}, {}),
        ("concurrency", {"concurrency": "2"}, {}),
        ("concurrency", {"concurrency": 10**12}, {}),
        ("rate", {"rate": 5}, {}),
        ("rate", {"rate_window_ms": 5000}, {}),
        ("rate_window_ms", {"rate": 5, "rate_window_ms": 10**12}, {}),
        ("fair_by", {"fair_by": "tenant"}, {}),
        ("fair_by", {"fair_by": "two words"}, {"is_declared": True}),
        ("fair_by", {"fair_by": 3}, {"is_declared": True}),
        ("weights", {"weights": [1]}, {}),
        ("weights", {"weights": {"acme": 0}}, {}),
        ("weights", {"weights": {"acme": 101}}, {}),
        ("weights", {"weights": {"acme": "3"}}, {}),
        ("weights", {"weights": {"": 3}}, {}),
        ("options", None, {"is_declared": True}),
        ("lane", {"concurrency": 1}, {"lane": "x" * 65, "is_declared": True}),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_by_its_field(
    engine, field, options, changes
):
    await fill(engine, 1)
    with refused("WF001", field=field):
        await set_options(engine, options, **changes)
    row = await engine.connection.fetchrow(
        "select declared, options, gate_id from ff.lane where lane = 'mail'"
    )
    assert tuple(row) == (None, None, None)


async def test_a_lane_nobody_knows_is_not_found(engine):
    with refused("WF303", lane="nowhere"):
        await set_options(engine, {"concurrency": 1}, lane="nowhere")


async def test_no_quota_may_have_the_name_of_the_limits_of_lanes(engine):
    (answer,) = await Admission(engine).register(
        {"kind": "quota", "name": "ff:lane", "key": "mail", "concurrency": 100}
    )
    assert answer["outcome"] == "invalid"
    with refused("WF001", field="quota"):
        await Admission(engine).one("set_quota", quota="ff:lane", key="mail", concurrency=100)
    await fill(engine, 1)
    await set_options(engine, {"concurrency": 1})
    assert await Admission(engine).call("list_quotas") == []
