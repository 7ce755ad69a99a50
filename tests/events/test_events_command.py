"""`flowfabric events`: what it prints, where it goes on, and how it ends when it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from datetime import UTC, datetime, timedelta

import pytest

from support.commands import invoke
from support.database import home
from support.factories import NAMESPACE, Item
from support.signals import hear_ctrl_c

from .log import until

GO_ON = re.compile(r"--cursor (\S+)")


@pytest.fixture
def run(db, monkeypatch):
    """Run the command on the test's database; returns the exit code, stdout and stderr."""
    monkeypatch.setenv("FLOWFABRIC_NAMESPACE", NAMESPACE)

    async def run(*arguments: str, url: str | None = None) -> tuple[int, str, str]:
        result = await invoke(
            *("-o", "json", "events", "--database-url", url or db.url), *arguments
        )
        return result.exit_code, result.stdout, result.stderr

    return run


def parsed(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


async def test_it_prints_a_line_of_json_for_each_event(run, make):
    execution = await make.execution("completed", lane="mail")
    code, out, err = await run()
    assert code == 0
    events = parsed(out)
    assert [(e["version"], e["kind"]) for e in events] == [
        (1, "submitted"),
        (2, "claimed"),
        (3, "completed"),
    ]
    assert {e["id"] for e in events} == {f"{{fp:{home()}}}:{execution.id}"}
    assert events[1]["lease_id"] == str(execution.last_lease.lease_id)
    assert events[2]["outcome"] == "success"
    assert {(e["lane"], e["task"], e["namespace"]) for e in events} == {
        ("mail", "tests.work", NAMESPACE)
    }
    assert GO_ON.search(err)


async def test_times_in_json_are_those_of_rfc_3339(run, make, db):
    await make.execution("waiting")
    _, out, _ = await run("-o", "json")
    (event,) = parsed(out)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", event["occurred_at"]
    )
    assert datetime.fromisoformat(event["occurred_at"]) == await db.fetchval(
        "select occurred_at from ff.event"
    )


async def test_it_prints_text_for_people(run, make):
    execution = await make.execution("leased")
    code, out, _ = await run("-o", "text")
    assert code == 0
    first, second = out.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  submitted +tests\.work ", first)
    assert f" {execution.id}  " in second
    assert "claimed" in second
    assert "attempt 1 epoch 1" in second
    assert second.endswith("pool-1")


async def test_it_goes_on_behind_the_cursor_it_named(run, make):
    await make.execution("leased")
    _, out, err = await run()
    assert len(parsed(out)) == 2
    cursor = GO_ON.search(err)[1]
    assert (await run("--cursor", cursor))[:2] == (0, "")
    execution = await make.execution("waiting")
    _, out, _ = await run("--cursor", cursor)
    assert [event["id"] for event in parsed(out)] == [f"{{fp:{home()}}}:{execution.id}"]


@pytest.mark.parametrize(
    ("since", "expected"),
    [("30s", 1), ("10m", 2), ("2h", 3), ("7d", 4), ("0s", 0), ("90m", 3)],
)
async def test_since_takes_spans(run, make, clock, since, expected):
    now = await clock.now()
    for span in ({"days": 6}, {"hours": 1, "minutes": 29}, {"minutes": 9}, {"seconds": 5}):
        await clock.set(now - timedelta(**span))
        await make.execution("waiting")
    _, out, _ = await run("--since", since)
    assert len(parsed(out)) == expected


async def test_since_takes_iso_times(run, make, clock):
    day = datetime(2025, 6, 1, 12, tzinfo=UTC)
    for days in range(3):
        await clock.set(day + timedelta(days=days))
        await make.execution("waiting")
    for since, expected in (
        ("2025-06-01T00:00:00Z", 3),
        ("2025-06-02T11:59:59+00:00", 2),
        ("2025-06-02T18:00:00+05:00", 1),
        ("2025-06-03", 1),
        ("20250603", 1),
        ("0001-01-01T00:00:00Z", 3),
        ("9999-12-31T23:59:59Z", 0),
    ):
        code, out, _ = await run("--since", since)
        assert (code, len(parsed(out))) == (0, expected), since


@pytest.mark.parametrize(
    "since",
    ["", "yesterday", "5", "5w", "-5m", "1.5h", "m", "٣m", "9999999999d", "9" * 5000 + "s",
     "0001-01-01", "2025-13-01"],
)  # fmt: skip
async def test_since_what_is_no_time_is_a_mistake_of_the_caller(run, since):
    code, out, err = await run("--since", since)
    assert (code, out) == (2, "")
    assert "since" in err


async def test_filters_choose_what_is_printed(run, make):
    first = await make.execution("completed", lane="one")
    await make.execution("leased", lane="two")
    for arguments, expected in (
        (("--kind", "completed"), ["completed"]),
        (("--kind", "completed", "--kind", "claimed"), ["claimed", "completed", "claimed"]),
        (("--feed", "completion"), ["completed"]),
        (("--feed", "lease", "--lane", "two"), ["claimed"]),
        (("--feed", "operator"), []),
        (("--lane", "two"), ["submitted", "claimed"]),
        (("--task", "other"), []),
        (("--execution", f"{{fp:{home()}}}:{first.id}"), ["submitted", "claimed", "completed"]),
    ):
        code, out, err = await run(*arguments)
        assert code == 0
        assert [event["kind"] for event in parsed(out)] == expected, arguments
        # What a filter hides is passed all the same.
        assert (await run("--cursor", GO_ON.search(err)[1]))[1] == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--kind", "nope"), "nope"),
        (("--feed", "nope"), "feed"),
        (("--feed", ""), "feed"),
        (("--execution", "nope"), "'nope' is not an id"),
        (("--cursor", "nope"), "cursor"),
        (("--cursor", ""), "cursor"),
        (("--cursor", "ff2:99999:x"), "cursor"),
        (("--follow", "--cursor", "nope"), "cursor"),
        (("-o", "nope"), "output"),
    ],
)
async def test_bad_input_ends_with_two_and_names_what_is_wrong(run, arguments, word):
    code, out, err = await run(*arguments)
    assert (code, out) == (2, "")
    assert word in err


@pytest.mark.parametrize("follow", [[], ["--follow"]])
async def test_a_database_that_cannot_be_reached_ends_with_five(run, tmp_path, follow):
    code, out, err = await run(*follow, url=f"postgresql://nobody@/none?host={tmp_path}")
    assert (code, out) == (5, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err


async def test_an_expired_cursor_ends_with_four_and_says_from_when_to_go_on(run, log, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_NAMESPACE", "test")
    await log.write("a")
    cursor = await log.open()
    await log.conn.execute("delete from ff.event")
    for follow in ([], ["--follow"]):
        code, out, err = await run("--cursor", cursor, *follow, url=log.url)
        assert (code, out) == (4, "")
        assert "history_lost" in err
        since = re.search(r"--since (\S+)", err)[1]
        assert (await run("--since", since, url=log.url))[0] == 0


@pytest.mark.slow
async def test_a_standby_ends_with_five(run, servers):
    primary = servers.make()
    standby = servers.adopt(primary.back_up(standby=True))
    standby.start()
    code, out, err = await run(url=standby.url)
    assert (code, out) == (5, "")
    assert "primary" in err


async def test_more_than_a_page_is_printed_to_the_end(run, engine):
    route = await engine.register()
    for _ in range(4):
        await engine.submit_many([Item(route=route)] * 400)
    code, out, _ = await run()
    assert code == 0
    assert len(out.splitlines()) == 1600


async def test_follow_prints_what_happens_until_it_is_interrupted(db, make, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_NAMESPACE", NAMESPACE)
    await make.execution("waiting")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowfabric", "events", "-o", "json",
        "--follow", "--database-url", db.url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            assert json.loads(await process.stdout.readline())["kind"] == "submitted"
            execution = await make.execution("leased")
            kinds = []
            for _ in range(2):
                event = json.loads(await process.stdout.readline())
                assert event["id"] == f"{{fp:{home()}}}:{execution.id}"
                kinds.append(event["kind"])
            assert kinds == ["submitted", "claimed"]
            # It lives through a cut connection, too.
            await until(
                lambda: db.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity where "
                    "datname = current_database() and application_name like 'flowfabric%'"
                )
            )
            await make.execution("waiting")
            assert json.loads(await process.stdout.readline())["version"] == 1
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
        assert process.returncode == 130
        assert out == b""
        assert b"Traceback" not in err
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
