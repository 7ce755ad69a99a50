"""`signal` and `resume`: what they do, refuse and report; `why` and `ls` tell of suspensions."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from uuid import uuid4

import pytest

from cli.operating import full
from support.database import home


async def test_a_signal_wakes_and_the_command_says_so(ff, make, engine):
    execution = await make.execution("suspended")
    found = await ff("signal", full(execution.id), "approve", '{"a": 1}', "--by", "ada")
    assert (found.code, found.line["effect"], found.line["is_duplicate"]) == (0, "woken", False)
    (signal,) = await engine.signals(execution.id)
    assert json.loads(signal["payload"]) == {"a": 1}
    assert (signal["source_identity"], signal["source_type"]) == ("ada", "operator")
    assert "a" not in found.line.values()


async def test_people_read_what_the_signal_did(ff, make):
    execution = await make.execution("leased")
    found = await ff("signal", full(execution.id), "approve", "-o", "table")
    assert found.out == f"{execution.id}  approve: it is kept until a wait takes it\n"


async def test_people_read_what_is_missing_after_one_of_several_signals(ff, make, engine):
    execution = await make.execution("leased")
    both = {"every": [{"signal": "packed"}, {"signal": "paid"}]}
    await engine.ask(execution.lease, "both", condition=both)
    await engine.suspend(execution.lease, "both")
    found = await ff("signal", full(execution.id), "paid", "-o", "table")
    first, second = found.out.splitlines()
    assert first == f"{execution.id}  paid: it is kept until a wait takes it"
    assert "(1 of 2 came: paid; still missing: packed)" in second


async def test_the_same_key_twice_changes_nothing(ff, make):
    execution = await make.execution("leased")
    await ff("signal", full(execution.id), "approve", "--key", "k")
    again = await ff("signal", full(execution.id), "approve", "--key", "k")
    assert (again.code, again.line["is_duplicate"]) == (0, True)


@pytest.mark.parametrize(
    ("state", "arguments", "code", "problem"),
    [
        ("completed", ("approve",), 4, "has ended"),
        ("leased", ("",), 2, "name"),
        ("leased", ("approve", "yes"), 2, "is not JSON"),
    ],
)
async def test_a_refused_signal_has_its_exit_code(ff, make, state, arguments, code, problem):
    execution = await make.execution(state)
    found = await ff("signal", full(execution.id), *arguments)
    assert (found.code, problem in found.err) == (code, True)


async def test_a_signal_to_an_unknown_execution_exits_with_3(ff):
    found = await ff("signal", "0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e", "approve")
    assert found.code == 3


async def test_resume_wakes_suspended_executions(ff, make, engine):
    one, two = await make.execution("suspended"), await make.execution("suspended")
    found = await ff("resume", full(one.id), "--reason", "enough", "--actor", "ann")
    assert (found.code, found.line["outcome"]) == (0, "resumed")
    assert (await engine.row(one.id))["public_state"] == "waiting"
    found = await ff("resume", "--where", "state=suspended", "--yes")
    assert (found.code, found.line["id"]) == (0, full(two.id))


async def test_resume_refuses_what_is_not_suspended(ff, make):
    execution = await make.execution("waiting")
    found = await ff("resume", full(execution.id))
    assert (found.code, found.line["outcome"]) == (4, "not_suspended")


async def test_suspended_executions_are_listed_shown_and_explained(ff, make):
    execution = await make.execution("suspended")
    assert (await ff("ls", "--state", "suspended")).line["id"] == full(execution.id)
    why = (await ff("why", full(execution.id))).line
    assert (why["code"], "waiting for the signal approve" in why["sentence"]) == (
        "suspended",
        True,
    )
    shown = await ff("show", full(execution.id), "-o", "table")
    assert "waiting for the signal approve" in shown.out
    assert "wait" in shown.out


async def test_a_token_is_answered_and_never_printed(ff, make, engine):
    execution = await make.execution("leased")
    _, token = await engine.waitpoint(execution.lease)
    found = await ff("signal", "-", "payment", "7", stdin=f"{token}\n")
    assert (found.code, found.line["effect"]) == (0, "buffered")
    again = await ff("signal", token, "payment", "8", "-o", "table")
    assert again.code == 0
    # A value that stands where the name belongs is not taken for null.
    missing = await ff("signal", token, '{"amount": 7}')
    assert missing.code == 2
    assert "flowfabric signal TOKEN NAME JSON" in missing.err
    wrong = await ff("signal", token[:-2] + "AA", "payment", "8")
    assert (wrong.code, "not the token" in wrong.err) == (2, True)
    for one in (found, again, wrong):
        assert token[8:] not in one.out + one.err


def test_a_terminal_asks_for_a_token_and_does_not_show_it():
    read = "from flowfabric.cli.ids import read_token; print('got', read_token('-'))"
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", read], stdin=terminal, stderr=terminal, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as asking:  # fmt: skip
        shown = b""
        # Type only when the echo is off, as a person does who waits for the question.
        while b"Token: " not in shown:
            shown += os.read(screen, 1000)
        os.write(screen, b"ffw_secret\n")
        out, _ = asking.communicate(timeout=60)
    os.close(terminal)
    with suppress(OSError):  # Linux says so when nobody has the terminal open any more
        while part := os.read(screen, 1000):
            shown += part
    os.close(screen)
    assert out == "got ffw_secret\n"
    assert b"secret" not in shown


async def test_keys_are_listed_and_rotated(ff, make, engine):
    assert [line["kid"] for line in (await ff("key", "ls")).lines] == ["k1"]
    assert (await ff("key", "rotate", "k2")).line["outcome"] == "rotated"
    execution = await make.execution("leased")
    await engine.waitpoint(execution.lease)
    asked = await ff("key", "rotate", "k3")
    assert (asked.code, "1 open waitpoints" in asked.err) == (2, True)
    assert (await ff("key", "rotate", "k3", "--yes", "--grace", "2h")).code == 0
    assert (await ff("key", "rotate", "k2", "--yes")).code == 4
    shown = await ff("key", "ls", "-o", "table")
    assert "current" in shown.out
    assert "verifying" in shown.out


async def test_a_seed_reads_its_secret_from_the_environment_only(ff, monkeypatch, tmp_path):
    missing = await ff("key", "seed", "shared", is_program=False)
    assert (missing.code, "FLOWFABRIC_WAITPOINT_SECRET" in missing.err) == (2, True)
    file = tmp_path / "secret"
    file.write_text("ab" * 32 + "\n")
    monkeypatch.setenv("FLOWFABRIC_WAITPOINT_SECRET_FILE", str(file))
    done = await ff("key", "seed", "shared", is_program=False)
    assert (done.code, "abab" in done.out + done.err) == (0, False)
    assert [line["kid"] for line in (await ff("key", "ls")).lines] == ["shared", "k1"]


async def test_approvals_are_listed_shown_and_answered(ff, make, engine, db):
    execution = await make.execution("leased")
    lease, points = execution.lease, [uuid4(), uuid4()]
    tokens = await db.fetchval(
        f"select tokens from ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6, $7, "
        "'Ship?', $8, 'json', 2, 1)",
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        uuid4(),
        points,
        ["legal", "ops"],
        b'{"order": 7}',
    )
    condition = {"approve": 2, "deny": 1, "of": [{"waitpoint": str(one)} for one in points]}
    await engine.ask(lease, "decision", condition=condition)
    await engine.suspend(lease, "decision")
    id = full(execution.id)

    listed = await ff("approvals", "ls")
    assert (listed.line["id"], listed.line["question"]) == (id, "Ship?")
    assert "0 of 2" in (await ff("approvals", "ls", "-o", "table")).out
    unknown = await ff("approvals", "approve", id, "--actor", "ann")
    assert (unknown.code, "legal, ops" in unknown.err) == (3, True)
    which = ("--approval", listed.line["approval_id"])
    for_ops = ("--for", "ops", "--actor", "ann", "--comment", "ok")
    done = await ff("approvals", "approve", id, *which, *for_ops)
    assert (done.code, done.line["effect"]) == (0, "buffered")
    other = await ff("approvals", "deny", id, "--for", "legal", "--actor", "ann")
    assert (other.code, "ann" in other.err) == (4, True)
    shown = await ff("approvals", "show", id, "-o", "table")
    assert "ops: approved by ann at" in shown.out
    assert ": ok\n" in shown.out
    assert "legal: no answer yet" in shown.out
    assert which[1] in shown.out
    both = await ff("approvals", "deny", tokens[0], *which)
    assert (both.code, "cannot be combined with a token" in both.err) == (2, True)
    by_token = await ff("approvals", "deny", "-", stdin=f"{tokens[0]}\n")
    assert (by_token.code, by_token.line["effect"]) == (0, "woken")
    assert tokens[0][8:] not in by_token.out + by_token.err
    again = await ff("approvals", "deny", tokens[0], "-o", "table")
    assert again.out == f"{execution.id}  denied before, nothing changed\n"


async def test_an_approver_answers_with_the_name_of_the_login(ff, make, db, monkeypatch):
    execution = await make.execution("leased")
    lease = execution.lease
    await db.execute(
        f"select ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6, '{{ada}}', 'Ship?', "
        "null, null, 1, 1)",
        *(lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, uuid4(), [uuid4()]),
    )
    id = full(execution.id)
    monkeypatch.setenv("LOGNAME", "bob")
    unknown = await ff("approvals", "approve", id, is_program=False)
    assert (unknown.code, "bob" in unknown.err) == (3, True)
    monkeypatch.setenv("LOGNAME", "ada")
    assert (await ff("approvals", "approve", id, is_program=False)).code == 0
    shown = await ff("approvals", "show", id, "-o", "table")
    assert "ada: approved by ada@" in shown.out


async def test_the_command_line_refuses_a_value_of_another_type(ff, make, engine, db):
    execution = await make.execution("leased")
    id = await db.fetchval(
        'select schema_id from ff.register_signal_schemas(array[\'{"type": "boolean"}\'::jsonb])'
    )
    await engine.ask(execution.lease, condition={"signal": "approve", "schema": id})
    found = await ff("signal", full(execution.id), "approve", "7")
    assert (found.code, "must be true or false, not a whole number" in found.err) == (2, True)
    assert (await ff("signal", full(execution.id), "approve", "true")).code == 0
