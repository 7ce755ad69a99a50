"""`ls`, `show`, `why`, `attempts`: what they show, what they hide, and how they end."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from cli.operating import full
from support.database import several_partitions
from support.factories import NAMESPACE, Engine, Item

SECRET = b'{"card": "4111-1111"}'


@several_partitions
async def test_ls_prints_a_line_of_json_for_each_newest_first(ff, make):
    first = await make.execution("waiting")
    second = await make.execution("failed", lane="mail")
    found = await ff("ls")
    assert found.code == 0
    assert [line["id"] for line in found.lines] == [full(second.id), full(first.id)]
    line = found.lines[0]
    assert (line["public_state"], line["lane"], line["task"]) == ("failed", "mail", "tests.work")
    assert datetime.fromisoformat(line["created_at"]).tzinfo is not None
    assert "worker_instance_id" not in found.lines[1]


async def test_ls_prints_a_table_for_people(ff, make):
    execution = await make.execution("failed", lane="mail")
    found = await ff("ls", "-o", "table")
    head, row = found.out.splitlines()
    assert head.split() == ["ID", "STATE", "TASK", "LANE", "TRY", "AGE", "WHY"]
    assert row.split()[:5] == [str(execution.id), "failed", "tests.work", "mail", "1"]
    wide = (await ff("ls", "-o", "wide")).out.splitlines()
    assert "PRIORITY" in wide[0]
    assert wide[1].startswith(str(execution.id))


async def test_ls_prints_only_ids_when_asked(ff, make):
    ids = [full((await make.execution("waiting")).id) for _ in range(2)]
    assert (await ff("ls", "-o", "id")).out.split() == ids[::-1]


async def test_ls_tells_what_an_execution_waits_for(ff, make):
    await make.execution("delayed", lane="delayed")
    await make.execution("leased", lane="leased")
    await make.execution("waiting", lane="waiting")
    rows = {row.split()[3]: row for row in (await ff("ls", "-o", "table")).out.splitlines()}
    assert rows["waiting"].endswith("for worker")
    assert rows["leased"].endswith("on pool-1")
    assert "in 59m" in rows["delayed"] or "in 1h" in rows["delayed"]


async def test_ls_marks_crash_loops(ff, make):
    execution = await make.execution("reclaim_delayed")
    found = await ff("ls", "-o", "table", "--state", "active")
    assert "crash loop" in found.out
    assert (await ff("ls")).line["is_crash_loop"] is True
    assert "CRASH LOOP" in (await ff("show", full(execution.id), "-o", "table")).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--state", "failed"),
        ("--where", "state=failed,expired"),
        ("--where", "state=failed", "--where", "lane=mail"),
        ("--lane", "mail"),
        ("--lane", "mail", "--task", "tests.work", "--since", "1h"),
        ("--tag", "team.name=x"),
        ("--where", "tag.team.name=x age<1h"),
        ("--where", "ended<1h"),
        ("--task", "tests.*", "--state", "failed"),
        ("--where", "task=t?sts.work lane=mail"),
    ],
)
async def test_ls_filters(ff, make, arguments):
    await make.execution("waiting")
    wanted = await make.execution("failed", lane="mail", tags={"team.name": "x"})
    assert (await ff("ls", *arguments)).line["id"] == full(wanted.id)
    assert (await ff("ls", *arguments, "--count")).line == {"count": 1, "is_more": False}
    assert (await ff("ls", *arguments, "--count", "-o", "table")).out == "1\n"


async def test_spans_of_time_go_by_the_clock_of_the_database(ff, make, clock):
    await make.execution("waiting", lane="old")
    await clock.advance(days=3)
    await make.execution("waiting", lane="new")
    assert (await ff("ls", "--since", "2d")).line["lane"] == "new"
    assert (await ff("ls", "--where", "age>2d")).line["lane"] == "old"
    assert " 3d " in (await ff("ls", "--where", "age>2d", "-o", "table")).out


async def test_ls_with_nothing_to_list_says_so_and_is_fine(ff, db):
    found = await ff("ls", "--state", "failed")
    assert (found.code, found.out, found.err) == (0, "", "no execution matches")


async def test_ls_goes_on_page_by_page_to_the_limit_or_the_end(ff, engine):
    route = await engine.register()
    for _ in range(3):
        await engine.submit_many([Item(route=route)] * 400)
    rare = await engine.submit(Item(route=await engine.register(lane="rare")))
    await engine.submit_many([Item(route=route)] * 30)
    everything = await ff("ls", "--limit", "0", "-o", "id")
    assert len(set(everything.out.split())) == 1231
    assert everything.err == ""
    some = await ff("ls", "--limit", "700", "-o", "id")
    assert some.out.split() == everything.out.split()[:700]
    assert "only the newest 700" in some.err
    assert (await ff("ls", "--limit", "1231", "-o", "id")).err == ""
    assert len((await ff("ls", "-o", "id")).out.split()) == 50
    assert (await ff("ls", "--lane", "rare", "-o", "id")).out.split() == [full(rare.id)]


async def test_only_the_own_namespace_is_shown_unless_asked(ff, make, db):
    ours = await make.execution("waiting")
    other = Engine(db.conn, namespace="other")
    theirs = await other.submit(Item(route=await other.register(lane="x")))
    assert (await ff("ls")).line["id"] == full(ours.id)
    assert (await ff("ls", "--namespace", "other")).line["id"] == full(theirs.id)
    assert len((await ff("ls", "-A")).lines) == 2
    assert "other" in (await ff("ls", "-A", "-o", "table")).out
    assert (await ff("ls", "-A", "-n", "other")).code == 2
    hidden = await ff("show", full(theirs.id))
    assert (hidden.code, hidden.out) == (3, "")
    assert "--all-namespaces" in hidden.err
    for command in ("show", "why"):
        assert (await ff(command, full(theirs.id), "-A")).code == 0
    assert (await ff("attempts", full(theirs.id))).code == 3


@pytest.mark.parametrize("command", ["show", "why", "attempts"])
async def test_looking_at_what_is_not_there_ends_with_three(ff, make, command):
    there = await make.execution("completed")
    missing = full(uuid4())
    found = await ff(command, missing, full(there.id))
    assert found.code == 3
    assert (
        f"error: {missing[7:]}: there is no such execution in the namespace {NAMESPACE}"
        in found.err
    )
    assert found.line["id"] == full(there.id)


async def test_show_has_all_that_an_operator_wants(ff, make, engine):
    execution = await make.execution(
        "leased", lane="mail", tags={"team.name": "x"}, deadline=timedelta(hours=5)
    )
    await engine.progress(execution.lease, percent=40, message="page 4")
    found = await ff("show", full(execution.id), "-o", "table")
    assert found.code == 0
    text = " ".join(found.out.split())
    for told in (
        str(execution.id),
        "state active",
        "why pool-1 holds its lease until",
        "task tests.work",
        "lane mail",
        f"lease {execution.lease.lease_id} epoch 1",
        "progress 40 %, page 4",
        "deadline",
        "tags team.name=x",
        "submitted",
        "claimed",
    ):
        assert told in text, told
    line = (await ff("show", full(execution.id))).line
    assert line["public_state"] == "active"
    assert line["why"]["dimension"] == "lease"
    assert "holds its lease" in line["why"]["sentence"]
    assert [event["kind"] for event in line["events"]] == ["submitted", "claimed"]
    assert [attempt["lifecycle"] for attempt in line["attempts"]] == ["started"]
    assert line["tags"] == {"team.name": "x"}


async def test_show_tells_the_failure(ff, make):
    execution = await make.execution("failed")
    line = (await ff("show", str(execution.id))).line
    text = (await ff("show", str(execution.id), "-o", "table")).out
    assert line["failure_class"] == "permanent"
    assert line["failure_reason"] in text
    assert "It is over: it failed" in text


OURS = '  File "/opt/flowfabric/worker/runner.py", line 9, in _run\n    await call()'
MINE = '  File "/srv/shop.py", line 4, in pay\n    raise ValueError("no")'


@pytest.mark.parametrize("command", ["show", "attempts", "result"])
async def test_the_trace_of_a_failure_is_shown(ff, make, engine, command):
    execution = await make.execution("leased")
    trace = f"Traceback (most recent call last):\n{OURS}\n{MINE}\nValueError: no"
    detail = json.dumps({"trace": trace, "library": "/opt/flowfabric"}).encode()
    await engine.fail(execution.lease, "permanent", "ValueError: no", detail=detail)
    form = [] if command == "result" else ["-o", "table"]
    shown, whole = [
        await ff(command, str(execution.id), *form, *options) for options in ([], ["--trace"])
    ]
    users, everything = (shown.err, whole.err) if command == "result" else (shown.out, whole.out)
    assert 'File "/srv/shop.py", line 4, in pay' in users
    assert "… 1 frame of flowfabric left out" in users
    assert "runner.py" not in users
    assert "runner.py" in everything
    assert "left out" not in everything
    if command != "result":
        facts = (await ff(command, str(execution.id))).line
        (attempt,) = facts["attempts"] if command == "show" else [facts]
        assert attempt["trace"] == trace
        assert "failure_detail" not in attempt


@pytest.mark.parametrize(
    ("category", "reason", "told"),
    [
        ("ValueError", "ValueError: no card", "permanent: ValueError: no card"),
        ("shop.NoCard", "NoCard: 4111", "permanent: NoCard: 4111"),
        ("shop.NoCard", "shop.NoCard", "permanent: shop.NoCard"),
        ("gateway", "it broke", "permanent gateway: it broke"),
    ],
)
async def test_show_names_the_class_of_an_error_once(ff, engine, category, reason, told):
    submitted = await engine.submit(Item(route=await engine.register()))
    lease = await engine.take(submitted.id)
    await engine.fail(lease, "permanent", reason, category=category)
    text = (await ff("show", str(submitted.id), "-o", "table")).out
    assert f"failure    {told}\n" in text


@pytest.mark.parametrize("form", ["table", "json"])
async def test_payload_and_result_are_shown_only_when_asked(ff, engine, form):
    submitted = await engine.submit(Item(route=await engine.register(), payload=SECRET))
    await engine.complete(await engine.take(submitted.id), b"\xff\x00secret")
    for command in ("show", "why", "attempts", "ls"):
        ids = () if command == "ls" else (full(submitted.id),)
        found = await ff(command, *ids, "-o", form)
        assert found.code == 0
        assert "4111" not in found.out + found.err
        assert "secret" not in found.out
    hidden, shown = [
        (await ff("show", full(submitted.id), "-o", form, *more)).out
        for more in ((), ["--payload"])
    ]
    assert "21" in hidden
    assert "4111-1111" in shown
    assert "/wBzZWNyZXQ=" in shown


async def test_show_keeps_to_the_last_events(ff, engine):
    submitted = await engine.submit(Item(route=await engine.register()))
    for number in range(12):
        await engine.change_priority(submitted.id, number)
    line = (await ff("show", full(submitted.id))).line
    assert [event["version"] for event in line["events"]] == list(range(4, 14))
    assert "events (the last 10)" in (await ff("show", full(submitted.id), "-o", "table")).out


async def test_why_tells_in_a_sentence(ff, make):
    waiting, done = await make.execution("waiting"), await make.execution("completed")
    found = await ff("why", full(waiting.id), "-o", "table")
    assert found.out.splitlines()[0] == "No worker is alive."
    found = await ff("why", full(waiting.id), str(done.id))
    assert [line["code"] for line in found.lines] == ["no_worker_alive", "completed"]
    assert found.lines[1]["sentence"].startswith("It is done: it completed at")
    both = await ff("why", full(waiting.id), str(done.id), "-o", "table")
    assert str(waiting.id) in both.out


async def test_attempts_are_listed_first_to_latest(ff, make):
    execution = await make.execution("retried")
    found = await ff("attempts", full(execution.id))
    assert [(line["attempt"], line["attempt_type"]) for line in found.lines] == [
        (1, "initial"),
        (2, "retry"),
    ]
    table = (await ff("attempts", full(execution.id), "-o", "table")).out.splitlines()
    assert table[0].split() == ["#", "TYPE", "STATE", "STARTED", "TOOK", "WORKER", "FAILURE"]
    assert len(table) == 3
    none = await make.execution("waiting")
    found = await ff("attempts", full(none.id), "-o", "table")
    assert (found.code, found.out, found.err) == (0, "", "no attempt yet")


async def test_ids_come_from_another_command(ff, make):
    executions = [await make.execution("waiting") for _ in range(3)]
    ids = [full(execution.id) for execution in executions[::-1]]
    for form in ("id", "json"):
        listed = (await ff("ls", "-o", form)).out
        found = await ff("why", "-", stdin=f"\n{listed}\n")
        assert [line["id"] for line in found.lines] == ids
    assert [line["id"] for line in (await ff("why", ids[0], "-", stdin=listed)).lines] == ids


@pytest.mark.parametrize(
    "id",
    ["nope", "", "{fp:0}", "{fp:x}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e", "{fp:0}:0190",
     "{fp:40000}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e", "z" * 36, "\x1b[31m"],
)  # fmt: skip
async def test_what_is_no_id_is_a_mistake_that_shows_an_id(ff, id):
    for command in (("show",), ("why",), ("attempts",), ("cancel",), ("replay",)):
        found = await ff(*command, id)
        assert (found.code, found.out) == (2, "")
        assert "such as 0190b5c2" in found.err or "the highest partition is" in found.err
        assert "\x1b" not in found.err


async def test_stdin_without_ids_is_a_mistake_that_names_the_line(ff):
    found = await ff("why", "-", stdin='{"x": 1}\n')
    assert found.code == 2
    assert "has no id" in found.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ls", "--state", "runing"), "did you mean active?"),
        (("ls", "--state", "held"), "use --held"),
        (("worker", "list"), "there is no command 'list'; did you mean `flowfabric worker ls`?"),
        (("db", "psql", "-c", "select 1"), "no option -c; put psql's own options after --"),
        (("ls", "--where", "sate=failed"), "did you mean state?"),
        (("ls", "--since", "soon"), "since"),
        (("ls", "--tag", "x"), "tag"),
        (("ls", "--limit", "-1"), "--limit"),
        (("ls", "-o", "xml"), "output"),
        (("ls", "--namespace", "a b"), "namespace"),
        (("show",), "ID"),
        (("lane", "pause", "x", "--until", "soon"), "until"),
        (("lane", "retention", "x", "long"), "retention"),
        (("worker", "mark-dead", "x"), "--reason"),
    ],
)
async def test_bad_usage_ends_with_two_and_names_what_is_wrong(ff, arguments, told):
    found = await ff(*arguments)
    assert (found.code, found.out) == (2, "")
    assert told in found.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("ls", "--count"),
        ("show", full(uuid4())),
        ("why", full(uuid4())),
        ("attempts", full(uuid4())),
        ("cancel", full(uuid4())),
        ("cancel", "--where", "lane=x", "--yes"),
        ("lane", "ls"),
        ("lane", "pause", "x"),
        ("worker", "ls"),
        ("worker", "mark-dead", "x", "--reason", "gone"),
    ],
)
async def test_no_database_ends_with_five(ff, tmp_path, arguments):
    found = await ff(*arguments, url=f"postgresql://nobody:secret@/none?host={tmp_path}")
    assert (found.code, found.out) == (5, "")
    assert found.err.startswith("error: ")
    assert "secret" not in found.err


async def test_a_terminal_gets_a_table_that_fits(ff, make):
    execution = await make.execution("failed", lane="a-lane-with-a-long-name")
    for columns in (80, 160):
        code, shown = await ff.on_terminal("ls", columns=columns)
        assert code == 0
        # A slow machine shows the progress first, and erases it.
        shown = re.sub(r"(\r\x1b\[K[^\r\n]*)*\r\x1b\[K", "", shown)
        lines = shown.splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[1].startswith(str(execution.id))
        assert ("LANE" in lines[0]) == (columns == 160)
        assert "\x1b" not in shown


async def test_json_can_be_had_on_a_terminal(ff, make):
    execution = await make.execution("waiting")
    code, shown = await ff.on_terminal("ls", "-o", "json")
    assert (code, json.loads(shown)["id"]) == (0, full(execution.id))


async def test_times_without_a_zone_are_those_of_this_machine(ff, make, clock):
    await clock.set(datetime(2025, 6, 1, 12, tzinfo=UTC))
    await make.execution("waiting")
    assert len((await ff("ls", "--since", "2025-05-31")).lines) == 1
    assert (await ff("ls", "--since", "2025-06-03")).out == ""


# Steps and children


@pytest.fixture
async def strays(engine, make, clock):
    """One execution for each thing that an operator looks for, by its flag."""
    parent = await make.execution("leased", lane="parent")
    held = await make.execution("leased", lane="held")
    await engine.hold(held.lease, step="charge")
    failed = await make.execution("leased", lane="failed")
    await engine.fail(failed.lease, "permanent", "CardDeclined: no", category="shop.CardDeclined")
    keyed = await engine.submit(key="order 7", fingerprint=b"7")
    child = await engine.submit(parent=parent.id)
    looping = await make.execution("reclaim_delayed", lane="looping")
    return {
        ("--held",): held.id,
        ("--error", "CardDeclined"): failed.id,
        ("--error", "shop.CardDeclined", "--state", "failed"): failed.id,
        ("--key", "order 7"): keyed.id,
        ("--parent", parent.id.hex[-12:]): child.id,
        ("--crash-looping",): looping.id,
        ("--where", "held=yes"): held.id,
        ("--where", "error=CardDeclined crash_looping=no"): failed.id,
        ("--where", f"parent={parent.id} held=no"): child.id,
    }


async def test_ls_finds_what_an_operator_looks_for(ff, strays):
    for arguments, id in strays.items():
        assert [line["uuid"] for line in (await ff("ls", *arguments)).lines] == [str(id)], arguments
        assert (await ff("ls", *arguments, "--count")).line["count"] == 1
        assert (await ff("ls", *arguments, "--namespace", "other")).out == ""
        assert (await ff("ls", *arguments, "-A")).line["uuid"] == str(id)
    for arguments in (("--key", "order 8"), ("--error", "Declined"), ("--error", "Card%")):
        assert (await ff("ls", *arguments)).out == ""


async def test_an_action_chooses_by_the_same_conditions(ff, strays):
    done = await ff("retry", "--where", "held=yes", "--yes")
    assert done.line["uuid"] == str(strays[("--held",)])
    done = await ff("cancel", "--where", "error=CardDeclined state=failed", "--yes", "--dry-run")
    assert done.line["uuid"] == str(strays[("--error", "CardDeclined")])


async def test_ls_says_at_which_step_it_is_held(ff, make, engine):
    for lane, step in (("a", "charge"), ("b", None)):
        held = await make.execution("leased", lane=lane)
        await engine.hold(held.lease, step=step)
    rows = (await ff("ls", "-o", "table")).out.splitlines()
    assert rows[2].endswith("held at step charge")
    assert rows[1].endswith("held")
    assert (await ff("ls", "--lane", "a")).line["held_step"] == "charge"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("tests.wrok", "no task tests.wrok was ever submitted here; did you mean tests.work?"),
        ("work", "did you mean tests.work?"),
        ("nothing.alike", "no task nothing.alike was ever submitted here"),
        ("shop.*", "no task shop.* was ever submitted here"),
    ],
)
async def test_a_task_that_matches_nothing_is_named_with_the_nearest(ff, make, asked, told):
    await make.execution("waiting")
    for command in (("ls", "--task", asked), ("ls", "--task", asked, "--count")):
        found = await ff(*command)
        assert (found.code, told in found.err) == (0, True), found.err
    found = await ff("cancel", "--where", f"task={asked}", "--yes")
    assert told in found.err
    assert "ever submitted" not in (await ff("ls", "--task", "tests.*")).err
    assert "ever submitted" not in (await ff("ls", "--task", "tests.work", "--lane", "x")).err


async def test_show_lists_the_beginning_of_step_values_and_hides_secrets(ff, make, engine):
    execution = await make.execution("leased")
    long = json.dumps("x" * 300).encode()
    for position, (name, value, encoding) in enumerate(
        [("total", b"42", None), ("token", SECRET, "secret"), ("page", long, None)]
    ):
        await engine.record(
            execution.lease, name=name, position=position, value=value, encoding=encoding
        )
    total, token, page = (await ff("show", full(execution.id))).line["steps"]
    assert (total["value"], total["value_bytes"], total["attempt"]) == ("42", 2, 1)
    assert ("value" in token, token["value_bytes"]) == (False, len(SECRET))
    assert ("value" in page, page["value_bytes"]) == (False, 302)
    shown = (await ff("show", full(execution.id), "-o", "table")).out
    assert ("42" in shown, "a secret" in shown, "x" * 100 in shown) == (True, True, True)
    assert "x" * 121 not in shown
    whole = (await ff("show", full(execution.id), "--payload")).line["steps"]
    assert ("value" in whole[1], whole[2]["value"]) == (False, long.decode())
    assert "4111" not in (await ff("show", full(execution.id), "-o", "table", "--payload")).out


async def test_show_lists_the_children_and_the_key(ff, make, engine):
    parent = await make.execution("leased", lane="parent")
    route = await engine.register(lane="child", task="shop.pack")
    children = [
        (await engine.submit(route=route, parent=parent.id, key=f"k{n}", fingerprint=b"1")).id
        for n in range(12)
    ]
    line = (await ff("show", str(parent.id))).line
    assert ("key" in line, line["child_count"]) == (False, 12)
    assert [child["uuid"] for child in line["children"]] == [str(id) for id in children[:1:-1]]
    assert (line["children"][0]["task"], line["children"][0]["public_state"]) == (
        "shop.pack",
        "waiting",
    )
    shown = (await ff("show", str(parent.id), "-o", "table")).out
    assert "children (the newest 10 of 12)" in shown
    assert str(children[-1]) in shown
    line = (await ff("show", str(children[3]))).line
    assert (line["key"], line["parent_id"]) == ("k3", full(parent.id))
    assert "key        k3" in (await ff("show", str(children[3]), "-o", "table")).out


async def test_show_lists_steps_and_sleeps(ff, make, engine):
    execution = await make.execution("leased")
    await engine.record(execution.lease, name="load", value=SECRET, encoding="json")
    await engine.record(
        execution.lease,
        name="nap",
        position=1,
        occurrence=2,
        kind="sleep",
        delay=timedelta(hours=1),
    )
    id = full(execution.id)
    steps = (await ff("show", id)).line["steps"]
    assert [(step["name"], step["kind"]) for step in steps] == [("load", "step"), ("nap", "sleep")]
    assert steps[0]["value_bytes"] == len(SECRET)
    shown = (await ff("show", id, "-o", "table")).out
    assert "nap#2" in shown
    assert "until in" in shown or "until " in shown
    assert "4111" in (await ff("show", id, "-o", "table", "--payload")).out
    assert (await ff("show", id, "--payload")).line["steps"][0]["value"] == SECRET.decode()


async def test_show_without_steps_says_nothing_of_them(ff, make):
    execution = await make.execution("leased")
    assert "steps" not in (await ff("show", full(execution.id))).line
    assert "steps" not in (await ff("show", full(execution.id), "-o", "table")).out


async def test_show_names_the_parent_and_counts_the_children(ff, make):
    parent = await make.execution("leased")
    child = await make.execution("waiting", parent=parent.id, with_parent=True)
    assert (await ff("show", full(parent.id))).line["child_count"] == 1
    assert "children   1" in (await ff("show", full(parent.id), "-o", "table")).out
    shown = (await ff("show", full(child.id), "-o", "table")).out
    assert f"{parent.id}, ends with it" in shown


async def test_why_tells_what_it_waits_for(ff, make):
    execution = await make.execution("awaiting")
    asleep = await make.execution("asleep")
    found = await ff("why", full(execution.id), full(asleep.id))
    assert [line["code"] for line in found.lines] == ["waiting_for_runs", "sleeping"]
