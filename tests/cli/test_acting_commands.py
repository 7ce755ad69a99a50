"""`cancel`, `revoke-lease`, `priority`, `replay`, `retry`: what they do, ask, refuse and report."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import signal
import sys
from collections import Counter
from uuid import uuid4

import pytest

from cli.operating import full
from flowfabric.cli import actions, output
from flowfabric.cli.options import Actor
from flowfabric.client.reads import ExecutionReads
from flowfabric.core.errors import ConnectionLost
from support.factories import NAMESPACE, Engine, Item
from support.proofs import some_of
from support.signals import hear_ctrl_c


async def states(db) -> Counter:
    rows = await db.fetch("select public_state::text from ff.execution")
    return Counter(row[0] for row in rows)


async def test_cancel_ends_executions_and_reports_each(ff, make, engine, db):
    ids = [full((await make.execution("waiting")).id) for _ in range(3)]
    found = await ff("cancel", *ids, "--reason", "not wanted", "--actor", "ann")
    assert found.code == 0
    assert {line["id"]: line["outcome"] for line in found.lines} == dict.fromkeys(ids, "cancelled")
    assert {line["public_state"] for line in found.lines} == {"cancelled"}
    assert found.err == "3 cancelled"
    assert await states(db) == {"cancelled": 3}
    event = (await engine.events())[-1]
    assert event["actor"] == "ann"
    assert "not wanted" in event["detail"]


async def test_the_actor_is_who_types(ff, make, engine):
    execution = await make.execution("waiting")
    await ff("cancel", str(execution.id))
    assert re.fullmatch(r".+@.+", (await engine.events(execution.id))[-1]["actor"])


async def test_a_user_without_a_name_is_an_actor_too(monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert Actor().who.startswith(f"uid{os.getuid()}@")


async def test_people_get_a_line_for_each(ff, make):
    execution = await make.execution("waiting")
    found = await ff("cancel", full(execution.id), "-o", "table")
    assert (found.code, found.out) == (0, f"{execution.id}  cancelled\n")


async def test_an_id_given_twice_is_acted_on_once(ff, make, engine):
    execution = await make.execution("waiting")
    found = await ff("priority", full(execution.id), str(execution.id), "7")
    assert found.line["detail"] == {"old_priority": 0, "new_priority": 7}
    assert await engine.kinds(execution.id) == ["submitted", "priority_changed"]


async def test_revoke_lease_takes_it_away_if_it_is_the_one_meant(ff, make, engine):
    execution = await make.execution("leased")
    id = full(execution.id)
    for arguments, reason in (
        (("--worker", "somebody-else"), "different_worker_instance_id"),
        (("--lease", str(uuid4())), "lease_id_mismatch"),
    ):
        line = (await ff("revoke-lease", id, *arguments)).line
        assert (line["outcome"], line["detail"]) == ("already_satisfied", {"reason": reason})
    lease = str(execution.lease.lease_id)
    found = await ff("revoke-lease", id, "--lease", lease, "--worker", "pool-1")
    assert (found.code, found.line["outcome"]) == (0, "revoked")
    assert (await engine.kinds(execution.id))[-1] == "lease_revoked"
    again = await ff("revoke-lease", id)
    assert (again.code, again.line["outcome"]) == (0, "already_satisfied")
    assert (await ff("revoke-lease", id, "--lease", "x")).code == 2


async def test_replay_and_retry_let_it_run_again(ff, make):
    done, delayed, held = [
        full((await make.execution(state)).id) for state in ("completed", "retry_delayed", "held")
    ]
    assert (await ff("replay", done)).line["outcome"] == "replayed"
    found = await ff("retry", delayed, held)
    assert {line["id"]: line["outcome"] for line in found.lines} == {
        delayed: "promoted",
        held: "unblocked",
    }


async def journaled(engine, make, state="completed"):
    execution = await make.execution("leased")
    for position, occurrence in enumerate((0, 1)):
        await engine.record(execution.lease, name="pay", position=position, occurrence=occurrence)
    if state == "held":
        await engine.hold(execution.lease, "the code changed", "pay")
    else:
        await engine.complete(execution.lease)
    return execution


async def left(engine, execution):
    return [(step["name"], step["occurrence"]) for step in await engine.steps(execution.id)]


async def test_replay_keeps_the_steps_or_forgets_them(ff, make, engine):
    plain, later, fresh = [await journaled(engine, make) for _ in range(3)]
    assert (await ff("replay", full(plain.id))).code == 0
    assert (await ff("replay", full(later.id), "--from-step", "pay#1")).code == 0
    assert (await ff("replay", full(fresh.id), "--fresh")).line["outcome"] == "replayed"
    assert await left(engine, plain) == [("pay", 0), ("pay", 1)]
    assert await left(engine, later) == [("pay", 0)]
    assert await left(engine, fresh) == []


async def test_replay_from_a_step_lets_a_held_one_go_on(ff, make, engine):
    execution = await journaled(engine, make, "held")
    id = full(execution.id)
    assert (await ff("replay", id)).code == 4
    assert "would replay" in (await ff("replay", id, "--fresh", "--dry-run", "-o", "table")).out
    assert (await ff("replay", id, "--from-step", "pay")).line["outcome"] == "unblocked"
    assert await left(engine, execution) == []


async def test_a_step_that_one_lacks_is_told_and_the_others_go_on(ff, make, engine):
    without = await make.execution("completed")
    with_step = await journaled(engine, make)
    found = await ff("replay", full(without.id), full(with_step.id), "--from-step", "pay#1")
    assert found.code == 2
    outcomes = {line["id"]: line for line in found.lines}
    assert outcomes[full(with_step.id)]["outcome"] == "replayed"
    assert "there is no step pay#1; none is recorded" in outcomes[full(without.id)]["error"]


@pytest.mark.parametrize("options", [("--from-step", "pay", "--fresh"), ("--from-step", "#3")])
async def test_options_of_replay_that_make_no_sense_end_with_two(ff, make, engine, options):
    execution = await journaled(engine, make)
    assert (await ff("replay", full(execution.id), *options)).code == 2
    assert len(await left(engine, execution)) == 2


@pytest.mark.parametrize(
    ("command", "state", "word"),
    [
        (["cancel"], "completed", "already_terminal"),
        (["priority", "5"], "leased", "not_eligible"),
        (["replay"], "waiting", "not_terminal"),
        (["retry"], "leased", "not_eligible"),
    ],
)
async def test_a_state_that_does_not_allow_it_ends_with_four(
    ff, make, engine, command, state, word
):
    execution = await make.execution(state)
    before = await engine.snapshot()
    verb, *rest = command
    for form in ("json", "table"):
        found = await ff(verb, full(execution.id), *rest, "-o", form)
        assert found.code == 4
        if form == "json":
            assert found.line["outcome"] == word
        else:
            assert found.out == ""
            assert found.err.startswith(f"error: {execution.id}: ")
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    "command", [["cancel"], ["priority", "5"], ["replay"], ["retry"], ["revoke-lease"]]
)
async def test_what_is_not_there_ends_with_three(ff, db, command):
    verb, *rest = command
    found = await ff(verb, full(uuid4()), *rest)
    assert (found.code, found.line["outcome"]) == (3, "not_found")
    found = await ff(verb, full(uuid4()), *rest, "-o", "table")
    assert found.code == 3
    assert "there is no such execution in the namespace" in found.err


async def test_some_refused_do_not_keep_the_others(ff, make, db):
    good, ended = await make.execution("waiting"), await make.execution("failed")
    found = await ff("cancel", full(uuid4()), full(ended.id), full(good.id))
    assert found.code == 4
    assert Counter(line["outcome"] for line in found.lines) == {
        "cancelled": 1,
        "already_terminal": 1,
        "not_found": 1,
    }
    assert "1 cancelled" in found.err
    assert await states(db) == {"cancelled": 1, "failed": 1}


async def test_other_namespaces_are_not_touched_unless_asked(ff, make, db):
    await make.execution("waiting", lane="x")
    other = Engine(db.conn, namespace="other")
    theirs = await other.submit(Item(route=await other.register(lane="x")))
    assert (await ff("cancel", full(theirs.id))).code == 3
    await ff("cancel", "--where", "lane=x", "--yes")
    assert await states(db) == {"cancelled": 1, "waiting": 1}
    found = await ff("cancel", "--where", "lane=x", "--yes", "-A")
    assert "of all namespaces" in found.err
    assert await states(db) == {"cancelled": 2}


@pytest.mark.parametrize(
    "command",
    [["cancel"], ["priority", "5"], ["replay"], ["retry"], ["revoke-lease"]],
)
async def test_a_dry_run_changes_nothing(ff, make, engine, command):
    lanes = {}
    for state in ("waiting", "leased", "failed", "delayed"):
        lanes[state] = await make.execution(state, lane=state)
    before = await engine.snapshot()
    verb, *rest = command
    ids = [full(execution.id) for execution in lanes.values()]
    by_id = await ff(verb, *ids, *rest, "--dry-run")
    assert by_id.code == 0
    assert len(by_id.lines) == 4
    by_filter = await ff(
        verb, *rest, "--where", "state=waiting,active,failed,delayed", "--dry-run", "-o", "table"
    )
    assert by_filter.code == 0
    assert len(by_filter.out.splitlines()) == 4
    assert "nothing was changed" in by_filter.err
    assert await engine.snapshot() == before
    assert Counter(line["outcome"].startswith("would_be") for line in by_id.lines)[False] >= 1


async def test_a_dry_run_tells_what_is_not_there_or_not_allowed(ff, make):
    done = await make.execution("completed")
    found = await ff("cancel", full(done.id), full(uuid4()), "--dry-run")
    assert found.code == 3
    assert [line["outcome"] for line in found.lines] == ["would_be_refused", "not_found"]


async def test_a_filter_needs_yes_where_nobody_can_be_asked(ff, make, engine):
    await make.execution("waiting", lane="x")
    before = await engine.snapshot()
    found = await ff("cancel", "--where", "lane=x")
    assert (found.code, found.out) == (2, "")
    assert "--yes" in found.err
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    ("typed", "code", "state"),
    some_of([("y\n", 0, "cancelled"), ("n\n", 1, "waiting"), ("\n", 1, "waiting")], turn=0),
)
async def test_a_terminal_is_asked_and_told_the_count(ff, make, db, typed, code, state):
    for _ in range(3):
        await make.execution("waiting", lane="x")
    found, shown = await ff.on_terminal("cancel", "--where", "lane=x", typed=typed)
    assert f"cancel 3 executions of {NAMESPACE}: " in shown
    assert "lane=x" in shown
    assert found == code, shown
    assert await states(db) == {state: 3}


async def test_a_terminal_is_not_asked_with_yes_or_about_ids(ff, make, db):
    first, _ = await make.execution("waiting"), await make.execution("waiting", lane="x")
    assert (await ff.on_terminal("cancel", full(first.id)))[0] == 0
    assert (await ff.on_terminal("cancel", "--where", "lane=x", "--yes"))[0] == 0
    assert await states(db) == {"cancelled": 2}


async def test_cancel_by_filter_leaves_ended_ones_alone(ff, make, db):
    for state in ("leased", "completed", "failed", "delayed", "waiting"):
        await make.execution(state, lane="x")
    found = await ff("cancel", "--where", "lane=x", "--yes")
    assert found.code == 0
    assert len(found.lines) == 3
    assert await states(db) == {"cancelled": 3, "completed": 1, "failed": 1}


@pytest.mark.parametrize("verb", ["replay", "retry"])
async def test_running_again_by_filter_must_name_the_state(ff, make, db, verb):
    await make.execution("completed", lane="x")
    await make.execution("failed", lane="x")
    found = await ff(verb, "--where", "lane=x", "--yes")
    assert found.code == 2
    assert "state=failed" in found.err
    assert (await ff(verb, "--where", "lane=x state=failed", "--yes")).code == 0
    assert await states(db) == {"completed": 1, "waiting": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("cancel",), "give ids"),
        (("cancel", full(uuid4()), "--where", "lane=x", "--yes"), "give ids"),
        (("cancel", "--where", "", "--yes"), "at least one condition"),
        (("cancel", "--where", "state=runing", "--yes"), "did you mean active?"),
        (("priority", full(uuid4()), "high"), "not a priority"),
        (("priority", full(uuid4()), "9001"), "from 0 to 9000"),
        (("priority", full(uuid4()), "9" * 5000), "not a priority"),
        (("priority", full(uuid4())), "not a priority"),
        (("priority", "7"), "give ids"),
        (("cancel", full(uuid4()), "--reason", "x" * 300), "reason"),
        (("cancel", full(uuid4()), "--reason", "a\x07b"), "reason"),
    ],
)
async def test_bad_usage_ends_with_two_and_changes_nothing(ff, make, engine, arguments, told):
    await make.execution("waiting", lane="x")
    before = await engine.snapshot()
    found = await ff(*arguments)
    assert (found.code, found.out) == (2, "")
    assert told in found.err
    assert await engine.snapshot() == before


async def test_nothing_to_act_on_is_fine(ff, db):
    found = await ff("cancel", "--where", "lane=x", "--yes")
    assert (found.code, found.out) == (0, "")
    assert "nothing matches" in found.err
    found = await ff("cancel", "-", stdin="")
    assert (found.code, found.err) == (0, "no ids were given")


async def test_ids_come_from_ls(ff, make, db):
    for _ in range(3):
        await make.execution("failed")
    listed = (await ff("ls", "--state", "failed")).out
    assert (await ff("retry", "-", stdin=listed)).code == 0
    assert await states(db) == {"waiting": 3}


async def test_a_long_run_acts_on_each_once_and_shows_progress(ff, engine, db, monkeypatch):
    # They still match when their priority is changed.
    monkeypatch.setattr(output, "LOG_SECONDS", 0.05)
    route = await engine.register(lane="x")
    for _ in range(2):
        await engine.submit_many([Item(route=route)] * 500)
    found = await ff("priority", "7", "--where", "lane=x", "--yes")
    assert found.code == 0, found.err
    assert len({line["id"] for line in found.lines}) == len(found.lines) == 1000
    assert await db.fetchval("select count(*) from ff.execution where version = 2") == 1000
    assert re.search(r"\d+ of 1000 done, \d+/s", found.err)
    assert found.err.endswith("1000 changed")


@pytest.mark.slow(short=1)
async def test_a_terminal_shows_progress_instead_of_thousands_of_lines(ff, engine, db):
    route = await engine.register(lane="x")
    for _ in range(4):
        await engine.submit_many([Item(route=route)] * 500)
    code, shown = await ff.on_terminal("cancel", "--where", "lane=x", "--yes")
    assert code == 0, shown
    assert re.search(r"\r\x1b\[K\d+ of 2000 done, \d+/s", shown)
    assert shown.count("\n") < 10
    assert shown.rstrip().endswith("2000 cancelled")
    assert await states(db) == {"cancelled": 2000}


async def test_what_is_submitted_meanwhile_is_not_touched(ff, engine, db, monkeypatch):
    route = await engine.register(lane="x")
    await engine.submit_many([Item(route=route)] * 10)
    confirm, loop = actions._Run._confirm, asyncio.get_running_loop()

    def late(*arguments):
        confirm(*arguments)
        submitting = engine.submit_many([Item(route=route)] * 5)
        asyncio.run_coroutine_threadsafe(submitting, loop).result()

    monkeypatch.setattr(actions._Run, "_confirm", late)
    found = await ff("cancel", "--where", "lane=x", "--yes")
    assert len(found.lines) == 10
    assert await states(db) == {"cancelled": 10, "waiting": 5}


async def test_what_has_moved_on_since_it_was_found_is_left_alone(ff, make, engine, monkeypatch):
    """Between the listing and the act somebody else retried it, and it is waiting again."""
    execution = await make.execution("failed")
    real, loop = ExecutionReads.list, asyncio.get_running_loop()

    async def move():
        await engine.replay(execution.id)
        await engine.cancel(execution.id)

    async def slow(self, *args, **options):
        page = await real(self, *args, **options)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(move(), loop))
        return page

    monkeypatch.setattr(ExecutionReads, "list", slow)
    done = await ff("retry", "--where", "state=failed", "--yes")
    assert done.code == 0
    assert done.line["outcome"] == "already_applied"
    assert "changed in between, skipped" in done.err
    assert (await engine.row(execution.id))["public_state"] == "cancelled"


async def test_a_database_that_goes_away_ends_with_five_and_tells_how_far_it_came(
    ff, engine, db, monkeypatch
):
    await engine.submit_many([Item(route=await engine.register(lane="x"))] * 30)
    real, calls = actions.Action, 0

    def breaking(verb, states, do, is_careful=False):
        async def some(client, id, version):
            nonlocal calls
            calls += 1
            if calls > 10:
                raise ConnectionLost("The database did not answer cancel_execution for 10 s")
            return await do(client, id, version)

        return real(verb, states, some, is_careful)

    monkeypatch.setattr(actions, "Action", breaking)
    found = await ff("cancel", "--where", "lane=x", "--yes")
    assert found.code == 5
    assert "stopped; 10 cancelled" in found.err
    assert "did not answer" in found.err
    assert calls < 30
    assert await states(db) == {"cancelled": 10, "waiting": 20}


async def test_a_locked_execution_is_told_and_ends_with_five(ff, make, db):
    busy, free = await make.execution("waiting"), await make.execution("waiting")
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution where execution_id = $1 for update", busy.id)
        found = await ff("cancel", full(busy.id), full(free.id))
    assert found.code == 5
    assert {line["id"]: line["outcome"] for line in found.lines} == {
        full(busy.id): "busy",
        full(free.id): "cancelled",
    }


async def test_ctrl_c_stops_and_tells_how_far_it_came(ff, engine, db):
    route = await engine.register(lane="x")
    for _ in range(8):
        await engine.submit_many([Item(route=route)] * 500)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric", "priority", "7", "--where", "lane=x", "--yes"),
        *("--database-url", db.url, "-n", NAMESPACE),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=hear_ctrl_c,
    )
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    told = re.search(rb"interrupted; (\d+) changed", err)
    assert told, err
    assert 0 < int(told[1]) < 4000
    assert b"Traceback" not in err
