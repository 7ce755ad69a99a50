"""`flowfabric doctor`: what it prints, and how it ends."""

from __future__ import annotations

import json
import re

import pytest

from flowfabric.doctor import installation_checks, invariants
from support.cases import for_each
from support.commands import invoke
from support.database import home
from support.factories import Item
from support.sabotage import drop_checks

GO_ON = re.compile(r"--since (\S+)")


async def break_one(working, plain):
    execution = await working.submit(route=await working.register())
    await plain.execute("update ff.execution set version = 3")
    return f"{{fp:{home()}}}:{execution.id}"


async def test_a_sound_database_ends_with_zero(doctor):
    code, out, err = await doctor("--throwaway", "-o", "table")
    assert code == 0
    # The server of the tests has no autovacuum.
    number = len(installation_checks()) + len(invariants())
    assert f"0 errors, 1 warning: {number} checks in" in out.replace("checks of", "checks")
    assert GO_ON.search(err)


async def test_an_error_ends_with_one_and_names_check_execution_and_problem(doctor, working, plain):
    id = await break_one(working, plain)
    code, out, _ = await doctor("--throwaway", "-o", "table")
    assert code == 1
    assert "O04  The events of an execution have " in out
    assert f"error    {id[7:]}  version 3, but the last event has version 1" in out
    assert "1 error, 1 warning" in out
    assert "--explain O04" in out


async def test_fsync_off_ends_with_one_unless_it_may_be_lost(doctor):
    code, out, _ = await doctor("-o", "table")
    assert code == 1
    assert "X01" in out
    assert "fsync is off" in out
    assert (await doctor("--throwaway"))[0] == 0


async def test_pgoptions_are_refused(doctor, monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    code, out, _ = await doctor()
    assert code == 1
    assert "PGOPTIONS sets synchronous_commit=off" in out


async def test_it_prints_json(doctor, working, plain):
    id = await break_one(working, plain)
    code, out, err = await doctor("--throwaway", "-o", "json")
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert (report["sound"], report["errors"], report["scope"]) == (False, 1, None)
    (finding,) = [finding for finding in report["findings"] if finding["level"] == "error"]
    assert finding == {
        "name": "O04",
        "level": "error",
        "execution": id,
        "problem": "version 3, but the last event has version 1",
    }
    assert len(report["checks"]) == len(installation_checks()) + len(invariants())
    assert all(check["title"] and check["seconds"] >= 0 for check in report["checks"])
    assert (await doctor("--throwaway", "--since", report["cursor"]))[0] == 0


async def test_it_goes_on_behind_the_cursor_it_named(doctor, working):
    route = await working.register()
    await working.submit_many([Item(route=route)] * 3)
    _, out, err = await doctor("--throwaway", "--since", "1h", "-o", "table")
    assert "checks of 3 executions with 3 new events" in out
    cursor = GO_ON.search(err)[1]
    _, out, err = await doctor("--throwaway", "--since", cursor, "-o", "table")
    assert "checks of 0 executions with 0 new events" in out
    # The anchor is the same. Transactions of other databases may have ended meanwhile.
    assert GO_ON.search(err)[1].split(":")[8:11] == cursor.split(":")[8:11]


async def test_a_list_of_findings_is_cut(doctor, working, plain):
    route = await working.register()
    await working.submit_many([Item(route=route)] * 15)
    await drop_checks(plain)
    await plain.execute("update ff.execution set rank = 9001")
    code, out, _ = await doctor("--throwaway", "-o", "table")
    assert code == 1
    assert out.count("out of bounds") == 10
    assert "and 5 others" in out


@for_each("check", [*installation_checks(), *invariants()], name=lambda check: check.name)
async def test_a_check_is_explained_without_a_database(check, tmp_path):
    command = ("doctor", "--database-url", f"postgresql://nobody@/none?host={tmp_path}")
    told = await invoke(*command, "--explain", check.name.lower(), "-o", "table")
    assert told.exit_code == 0
    for words in (check.title, check.meaning, check.remedy, check.text):
        assert words in told.stdout
    told = await invoke(*command, "--explain", check.name, "-o", "json")
    assert (told.exit_code, json.loads(told.stdout)["remedy"]) == (0, check.remedy)


async def test_an_execution_is_explained(doctor, working, plain):
    route = await working.register()
    execution = await working.submit(route=route, policy={"retry_policy": {}}, payload=b"x" * 300)
    await working.fail(await working.claim_one(), "transient")
    id = f"{{fp:{home()}}}:{execution.id}"
    code, out, _ = await doctor("--explain", id, "-o", "table")
    assert code == 0
    assert "retry_scheduled" in out
    assert "waiting_for_retry_backoff" in out
    assert re.search(r"payload_bytes +300", out)
    assert "S05  holds" in out
    assert "BROKEN" not in out
    total = re.search(r"(\d+) of \1 invariants hold", out)
    assert int(total[1]) > 20
    await plain.execute("update ff.execution set due_at = null")
    code, out, _ = await doctor("--explain", str(execution.id), "-o", "table")
    assert code == 1
    assert "S05  BROKEN" in out
    assert "due_at never" in out
    code, out, _ = await doctor("--explain", id)
    found = json.loads(out)
    assert (code, found["id"], found["sound"]) == (1, id, False)
    assert [check["name"] for check in found["checks"] if not check["holds"]] == ["S05"]
    assert [row["kind"] for row in found["rows"] if row["part"] == "event"] == [
        "submitted",
        "claimed",
        "retry_scheduled",
    ]


async def test_an_execution_that_is_not_there_ends_with_three(doctor):
    code, out, err = await doctor(
        "--explain", f"{{fp:{home()}}}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"
    )
    assert (code, out) == (3, "")
    assert "no such execution" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--explain", "S99"), "S99"),
        (("--explain", "nonsense"), "nonsense"),
        (("--explain", "S01", "--since", "1h"), "since"),
        (("--since", "yesterday"), "since"),
        (("--since", "ff2:no:cursor"), "since"),
        (("-o", "nope"), "output"),
        (("--fix",), "fix"),
    ],
)
async def test_bad_input_ends_with_two_and_names_what_is_wrong(doctor, arguments, word):
    code, out, err = await doctor("--throwaway", *arguments)
    assert (code, out) == (2, "")
    assert word in err


async def test_a_database_that_cannot_be_reached_ends_with_five(doctor, tmp_path):
    for arguments in ((), ("--explain", f"{{fp:{home()}}}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e")):
        code, out, err = await doctor(*arguments, url=f"postgresql://nobody@/none?host={tmp_path}")
        assert (code, out) == (5, "")
        assert err.startswith("error: ")


async def test_a_database_without_the_schema_ends_with_one(doctor, cluster):
    code, out, err = await doctor("--throwaway", "-o", "table", url=cluster.url)
    assert code == 1
    assert "no flowfabric schema" in out
    assert "not checked" in err


async def test_it_writes_nothing(doctor, working, plain):
    await break_one(working, plain)
    name = await plain.fetchval("select current_database()")
    await plain.execute(f"alter database {name} set default_transaction_read_only = on")
    code, _, _ = await doctor("--throwaway")
    assert code == 1
    assert (await doctor("--throwaway", "--since", "1h"))[0] == 1


async def test_help_says_who_may_run_it(doctor):
    code, out, _ = await doctor("--help")
    assert code == 0
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert "owner of schema ff" in words
    assert "--throwaway" in words
