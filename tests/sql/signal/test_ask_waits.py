"""ff.ask_waits: open a wait, look at its answer, take it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from support.factories import new_id

HOUR = timedelta(hours=1)


async def test_an_ask_opens_the_wait_and_is_no_transition(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased")
    before = await engine.row(execution.id)
    answer = await engine.ask(execution.lease, "approve", position=2, timeout=HOUR)
    now = await clock.now()
    assert (answer.word, answer.recorded_at, answer.until_at) == ("open", now, now + HOUR)
    assert await engine.row(execution.id) == before
    (step,) = await engine.steps(execution.id)
    assert (step["kind"], step["position"], step["taken_as"]) == ("wait", 2, None)


async def test_the_timeout_is_fixed_when_the_wait_is_first_opened(engine, make, clock):
    execution = await make.execution("leased")
    first = await engine.ask(execution.lease, timeout=HOUR)
    await clock.advance(seconds=5)
    again = await engine.ask(execution.lease, timeout=HOUR * 5)
    assert again.until_at == first.until_at


async def test_a_look_leaves_the_signal_for_others(engine, make):
    execution = await make.execution("leased")
    await engine.signal(execution.id, payload=b"1")
    looks = [await engine.ask(execution.lease, "approve", n, position=n) for n in range(2)]
    assert [look.word for look in looks] == ["ready", "ready"]
    assert looks[0].ready_at == looks[1].ready_at is not None
    assert (await engine.ask(execution.lease, "approve", 1, position=1, take=True)).value == b"1"
    assert (await engine.ask(execution.lease, "approve", 0, take=True)).word == "open"


async def test_a_taken_wait_is_answered_alike_to_every_later_holder(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.signal(execution.id, payload=b"1")
    first = await engine.ask(execution.lease, take=True)
    await engine.signal(execution.id, payload=b"2")
    assert await engine.ask(execution.lease, take=True) == first
    await engine.release(execution.lease)
    lease = await engine.take(execution.id, lanes=["w"])
    assert await engine.ask(lease) == first


async def test_a_due_wait_times_out_and_the_answer_stays(engine, make, clock):
    execution = await make.execution("leased")
    opened = await engine.ask(execution.lease, timeout=timedelta(seconds=5))
    await clock.advance(seconds=5)
    look = await engine.ask(execution.lease)
    assert (look.word, look.ready_at) == ("timed_out", opened.until_at)
    taken = await engine.ask(execution.lease, take=True)
    assert (taken.word, taken.taken_as, taken.ready_at) == ("taken", "timeout", opened.until_at)
    await engine.signal(execution.id)
    assert (await engine.ask(execution.lease, take=True)).taken_as == "timeout"


async def test_a_signal_after_the_time_and_before_the_ask_counts(engine, make, clock):
    execution = await make.execution("leased")
    await engine.ask(execution.lease, timeout=timedelta(seconds=5))
    await clock.advance(seconds=9)
    await engine.signal(execution.id, payload=b"late")
    assert (await engine.ask(execution.lease, take=True)).value == b"late"


async def test_a_stale_holder_opens_and_takes_nothing(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.signal(execution.id)
    await engine.release(execution.lease)
    assert (await engine.ask(execution.lease, take=True)).word == "not_active"
    await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(execution.lease, take=True)).word == "stale_lease"
    forged = replace(execution.lease, execution_id=new_id())
    assert (await engine.ask(forged, take=True)).word == "not_found"
    assert await engine.steps(execution.id) == []
    (signal,) = await engine.signals(execution.id)
    assert signal["taken_at"] is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 301}, "name"),
        ({"occurrence": -1}, "occurrence"),
        ({"position": -1}, "position"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": timedelta(days=40_000)}, "timeout"),
        ({"take": None}, "take"),
        ({"condition": {}}, "condition"),
        ({"condition": []}, "condition"),
        ({"condition": {"signal": ""}}, "condition"),
        ({"condition": {"signal": 7}}, "condition"),
        ({"condition": {"signal": "a", "other": 1}}, "condition"),
    ],
)
async def test_bad_input_names_the_field_and_opens_nothing(engine, make, given, field):
    execution = await make.execution("leased")
    answer = await engine.ask(execution.lease, **given)
    assert (answer.word, answer.detail["field"]) == ("invalid", field)
    assert await engine.steps(execution.id) == []


async def test_a_wait_does_not_share_the_name_of_another_step(engine, make):
    execution = await make.execution("leased")
    await engine.record(execution.lease, name="approve")
    answer = await engine.ask(execution.lease, "approve")
    assert (answer.word, answer.detail["field"]) == ("invalid", "name")


async def test_a_retry_keeps_a_taken_signal_and_drops_a_timeout(engine, make, clock):
    execution = await make.execution("leased", lane="w", policy={"retry_policy": {}})
    await engine.signal(execution.id, "a", b"1")
    await engine.ask(execution.lease, "a", take=True)
    await engine.ask(execution.lease, "b", position=1, timeout=timedelta(seconds=5))
    await clock.advance(seconds=5)
    assert (await engine.ask(execution.lease, "b", position=1, take=True)).taken_as == "timeout"
    assert (await engine.fail(execution.lease, "transient")).word == "retry_scheduled"
    await engine.retry(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a")).value == b"1"
    again = await engine.ask(lease, "b", position=1, timeout=HOUR, take=True)
    assert (again.word, again.until_at - await clock.now() > timedelta(minutes=59)) == (
        "open",
        True,
    )


async def test_a_reclaim_keeps_the_timeout_of_an_open_wait(engine, make, clock):
    execution = await make.execution("leased", lane="w")
    opened = await engine.ask(execution.lease, timeout=HOUR)
    await clock.advance(seconds=31)
    await engine.expire()
    lease = await engine.take(execution.id, lanes=["w"])
    assert lease.claim_kind == "reclaimed"
    assert (await engine.ask(lease, timeout=HOUR)).until_at == opened.until_at


async def test_a_plain_replay_keeps_the_answers_and_the_mailbox(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.signal(execution.id, "a", b"1")
    await engine.signal(execution.id, "a", b"2")
    await engine.ask(execution.lease, "a", take=True)
    await engine.complete(execution.lease)
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a")).value == b"1"
    assert (await engine.ask(lease, "a", 1, position=1, take=True)).value == b"2"


async def test_a_replay_from_the_wait_asks_again_and_spends_its_answer(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.signal(execution.id, "a", b"1")
    await engine.ask(execution.lease, "a", take=True)
    await engine.complete(execution.lease)
    await engine.replay(execution.id, from_step="a")
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a", take=True)).word == "open"
    await engine.signal(execution.id, "a", b"2")
    assert (await engine.ask(lease, "a", take=True)).value == b"2"


async def test_a_fresh_replay_spends_the_mailbox_as_well(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.signal(execution.id, "a")
    await engine.complete(execution.lease)
    await engine.replay(execution.id, fresh=True)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a", take=True)).word == "open"


async def test_continuing_keeps_the_mailbox_and_spends_the_answers(engine, make):
    execution = await make.execution("leased", lane="w")
    for payload in (b"1", b"2"):
        await engine.signal(execution.id, "a", payload)
    assert (await engine.ask(execution.lease, "a", take=True)).value == b"1"
    await engine.continue_as(execution.lease)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a", take=True)).value == b"2"


async def test_a_wait_of_an_unregistered_code_version_is_refused_and_opens_nothing(
    engine, make, db
):
    execution = await make.execution("leased")
    answer = await engine.ask(execution.lease, code_version="v9")
    assert (answer.word, answer.detail["code_version"]) == ("unknown_route", "v9")
    assert await db.fetchval("select count(*) from ff.step") == 0
    assert (await engine.ask(execution.lease)).word == "open"
