"""`flowfabric tail`: frames, rewinds and summaries in a terminal or for a program."""

from __future__ import annotations

import json

import pytest

from cli.operating import Commands, full
from support.factories import Engine, Lease
from support.streams import append


@pytest.fixture
async def told(engine: Engine, make) -> Lease:
    """An execution that was retried in the middle of its stream, and has ended."""
    held = await make.execution("leased")
    await append(engine, held.lease, b"Hello ", b"wor")
    await append(engine, held.lease, b'{"a": 1}', no=2, encoding="json", kind="event", position=1)
    await engine.revoke(held.id)
    lease = await engine.take(held.id)
    await append(engine, lease, b"again\n", base=1)
    await append(
        engine, lease, b'{"n": 1}', no=1, base=1, mode="summary", encoding="json", kind="summary"
    )
    await append(engine, lease, b"\xff", no=2, base=1, encoding="bytes", kind="blob")
    await engine.complete(lease)
    return lease


async def test_text_is_printed_as_it_was_sent_and_a_rewind_on_stderr(ff: Commands, told: Lease):
    found = await ff("tail", full(told.execution_id), "-o", "text")
    assert found.code == 0
    assert found.out == ('Hello wor\nevent {"a": 1}\nagain\nsummary {"n": 1}\nblob (1 bytes)\n')
    assert "-- rewind: attempt 2 sends the frames after" in found.err
    now = await ff("tail", full(told.execution_id), "-o", "text", "--no-follow")
    assert (now.out, now.err) == (found.out, found.err)


async def test_programs_get_a_line_of_json_for_each(ff: Commands, told: Lease):
    found = await ff("tail", full(told.execution_id), "-o", "jsonl")
    lines = found.lines
    assert [line.get("data", line.get("base64")) for line in lines] == [
        "Hello ",
        "wor",
        {"a": 1},
        None,
        "again\n",
        {"n": 1},
        "/w==",
    ]
    assert lines[3]["rewind"] == lines[1]["id"]
    assert lines[5]["summary_version"] == 1
    since = await ff(
        "tail", full(told.execution_id), "-o", "jsonl", "--since", lines[4]["id"], "--kind", "blob"
    )
    assert [line["id"] for line in since.lines] == [lines[6]["id"]]


async def test_the_summary_is_one_line(ff: Commands, told: Lease, make):
    found = await ff("tail", full(told.execution_id), "--summary", "-o", "text")
    assert json.loads(found.out) == {"n": 1}
    other = await make.execution("waiting")
    found = await ff("tail", full(other.id), "--summary", "-o", "text")
    assert found.out == "null\n"


async def test_what_makes_no_sense_is_named(ff: Commands, told: Lease):
    wrong = await ff("tail", full(told.execution_id), "-o", "text", "--since", "yesterday")
    assert wrong.code == 2
    assert "since" in wrong.err
    both = await ff("tail", full(told.execution_id), "--summary", "--kind", "x", "-o", "text")
    assert both.code == 2
    missing = "{fp:0}:018bd12c-58b0-7683-8a5b-8752d0e86651"
    for more in ((), ("--summary",), ("--no-follow",)):
        assert (await ff("tail", missing, "-o", "text", *more)).code == 3


async def test_a_stream_cannot_control_the_terminal(ff: Commands, engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"\x1b]0;title\x07red \x1b[31m")
    await engine.complete(held.lease)
    code, shown = await ff.on_terminal("tail", full(held.id))
    assert code == 0
    assert "\x1b]0" not in shown
    assert "\x1b[31m" not in shown
