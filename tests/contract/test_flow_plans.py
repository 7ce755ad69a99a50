"""Telling of an end reads what it concerns, whatever the planner believed about the tables when it
made its plans: 8 000 executions, edges and groups of others cost nothing, and neither do the other
edges of a wide join."""

from __future__ import annotations

import pytest

from contract.test_plans import Meter, N, by_key, connected, grow
from support.factories import Engine
from support.flows import Group, make_flow
from support.proofs import some_of

OTHERS = 8_000
GROW_GROUPS = """
with other as (select gen_random_uuid() as id, gen_random_uuid() as flow_id, n
               from generate_series(1, $1::bigint) n),
edges as (
  insert into ff.edge (partition_key, flow_id, edge_id, upstream_id, downstream_id, created_at,
                       applied_at, resolution)
  select 0, flow_id, gen_random_uuid(), gen_random_uuid(), id, clock_timestamp(), clock_timestamp(),
         'unsatisfied' from other)
insert into ff.edge_group (partition_key, downstream_id, flow_id, n) select 0, id, flow_id, 1
from other
"""
# No more than a few looks at each edge, member and group; nothing by an index that has them all.
TOLD = {
    "execution_pkey": by_key(8 * N),
    "execution_parent": by_key(N),
    "execution_unfinished": 0,
    "execution_body_pkey": N,
    "attempt_pkey": 0,
    "run_wait_target": 0,
    "edge_open": by_key(3 * N),
    "edge_pkey": by_key(3 * N),
    "edge_group_pkey": by_key(6 * N),
    "edge_upstream": by_key(N),
    # once for a group that is decided: how late its last edge was, and whom it does not need
    "edge_downstream": by_key(3 * N),
    "flow_pkey": by_key(2 * N),
}


SITUATIONS = ["empty, then grown", "small and analysed, then grown"]


def in_situations(turn: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("meter", some_of(SITUATIONS, turn, share=2), indirect=True)


@pytest.fixture
async def meter(request, bare):
    async with connected(bare) as connection, connected(bare) as observer:
        engine = Engine(connection)
        route = await engine.register(task="tests.other")
        for turn in range(8):
            await small_flow(engine)
            if turn == 4 and request.param.startswith("small"):
                await observer.execute("analyze")
        await grow(observer, OTHERS, [route])
        await observer.execute(GROW_GROUPS, OTHERS)
        yield Meter(engine, observer)


async def small_flow(engine):
    """Every way a group can be decided, for every plan to be cached."""
    cancels = {"on_satisfied": "cancel_remaining"}
    flow = await make_flow(
        engine,
        nodes=[*"abcdexyz"],
        edges=[("a", "x"), ("b", "x"), ("a", "y"), ("c", "y"), ("d", "z"), ("e", "z")],
        groups=[Group("z", "any_of", **cancels)],
    )
    await flow.complete("a")
    await flow.complete("b")
    await flow.fail("c")
    await flow.complete("d")


async def ended(meter, flow, names):
    """What it reads to complete these nodes in one call."""
    leases = await meter.engine.claim(N, lanes=[flow.lanes[name] for name in names])
    assert len(leases) == len(names)
    answers, work = await meter.of(meter.engine.complete_many(leases, [b"1"] * len(leases)))
    assert {answer.word for answer in answers} == {"completed"}
    return work


def check(work):
    assert work.whole.keys() & {"execution", "edge", "edge_group", "run_wait", "flow"} == set()
    big = ("execution", "edge", "run_wait", "flow", "attempt")
    used = {index for index in work.scans if index.startswith(big)}
    assert used <= set(TOLD), used - set(TOLD)
    for index, limit in TOLD.items():
        assert work.entries.get(index, 0) <= limit, (index, work.entries)


@in_situations(0)
async def test_a_hundred_of_a_thousand_upstreams_of_one_member(meter):
    names = [f"up {n}" for n in range(10 * N)]
    flow = await make_flow(meter.engine, nodes=[*names, "z"], edges=[(one, "z") for one in names])
    for start in (0, N):
        check(await ended(meter, flow, names[start : start + N]))
    assert (await flow.group("z"))["succeeded"] == 2 * N


@in_situations(1)
async def test_a_hundred_members_of_one_upstream(meter):
    names = [f"down {n}" for n in range(N)]
    flow = await make_flow(meter.engine, nodes=["a", *names], edges=[("a", one) for one in names])
    check(await ended(meter, flow, ["a"]))
    assert set((await flow.states(names)).values()) == {"waiting"}


@in_situations(0)
async def test_a_hundred_siblings_of_the_first(meter):
    names = [f"up {n}" for n in range(N)]
    flow = await make_flow(
        meter.engine,
        nodes=[*names, "z"],
        edges=[(one, "z") for one in names],
        groups=[Group("z", "any_of", on_satisfied="cancel_remaining")],
    )
    check(await ended(meter, flow, names[:1]))
    assert set((await flow.states(names[1:])).values()) == {"cancelled"}
