"""`flow`: what an operator sees of flows, and does to them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from cli.operating import full
from support.flows import Group, make_flow

FOUR = {
    "nodes": ["load", "price", "tax", "total"],
    "edges": [("load", "price"), ("load", "tax"), ("price", "total"), ("tax", "total")],
}


@pytest.fixture
async def flow(db):
    """A diamond: load, then price and tax, then total."""
    return await make_flow(db, **FOUR)


@pytest.fixture
async def broken(flow):
    """The diamond after price has failed: total is skipped."""
    await flow.complete("load")
    await flow.fail("price")
    return flow


# ls


async def test_flows_are_listed_newest_first(ff, db):
    flows = [await make_flow(db, **FOUR) for _ in range(3)]
    await flows[0].complete("load")
    await flows[0].take("tax")
    found = await ff("flow", "ls")
    assert found.code == 0
    assert [line["id"] for line in found.lines] == [full(one.id) for one in reversed(flows)]
    assert [line["state"] for line in found.lines] == ["blocked", "blocked", "running"]
    assert found.lines[0]["node_count"] == 4
    table = (await ff("flow", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == ["ID", "STATE", "KIND", "NODES", "EDGES", "AGE"]
    assert table[3].split()[:5] == [str(flows[0].id), "running", "test", "4", "4"]


async def test_a_list_is_narrowed_by_state_and_limit(ff, db):
    flows = [await make_flow(db, nodes=["a"]) for _ in range(3)]
    await flows[1].complete("a")
    found = await ff("flow", "ls", "--state", "completed,failed", "-o", "id")
    assert found.out.split() == [full(flows[1].id)]
    found = await ff("flow", "ls", "--limit", "2")
    assert len(found.lines) == 2
    assert "--limit 0 lists all" in found.err
    assert len((await ff("flow", "ls", "--limit", "0")).lines) == 3
    found = await ff("flow", "ls", "--state", "done")
    assert found.code == 2
    assert "running" in found.err


async def test_no_flows_are_no_mistake(ff, db):
    found = await ff("flow", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no flows yet" in found.err


async def test_flows_of_other_namespaces_are_not_seen(ff, flow):
    assert (await ff("flow", "ls", "-n", "other")).out == ""
    assert (await ff("flow", "show", str(flow.id), "-n", "other")).code == 3
    table = (await ff("flow", "ls", "-A", "-o", "table")).out
    assert "NAMESPACE" in table


# show


async def test_a_flow_is_shown_whole(ff, broken):
    line = (await ff("flow", "show", str(broken.id))).line
    assert line["id"] == full(broken.id)
    assert line["counts"] == {"waiting": 1, "completed": 1, "failed": 1, "skipped": 1}
    assert line["node_count"] == 4
    text = (await ff("flow", "show", full(broken.id), "-o", "table")).out
    assert "members    4: 1 failed, 1 waiting, 1 skipped, 1 completed" in text
    rows = text[text.index("NAME") :].splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["price", "tax", "total"]


async def test_several_flows_are_shown_from_stdin(ff, db):
    flows = [await make_flow(db, nodes=["a"]) for _ in range(2)]
    lines = (await ff("flow", "ls")).out
    found = await ff("flow", "show", "-", stdin=lines)
    assert {line["id"] for line in found.lines} == {full(one.id) for one in flows}


@pytest.mark.parametrize("verb", ["show", "graph", "cancel", "retry-failed"])
async def test_a_flow_that_is_not_there_exits_with_3(ff, db, verb):
    options = ["--yes"] if verb == "cancel" else []
    found = await ff("flow", verb, str(uuid4()), "-o", "table", *options)
    assert found.code == 3
    assert "there is no such flow in the namespace test" in found.err


@pytest.mark.parametrize("verb", ["show", "graph", "cancel", "retry-failed"])
async def test_the_id_of_a_node_is_told_from_that_of_a_flow(ff, flow, verb):
    options = ["--yes"] if verb == "cancel" else []
    node = flow.ids["tax"]
    found = await ff("flow", verb, str(node), "-o", "table", *options)
    assert found.code == 3
    assert f"is an execution, a member of the flow {flow.id}" in found.err


@pytest.mark.parametrize("verb", ["show", "graph", "cancel", "retry-failed"])
async def test_what_is_no_id_is_wrong_usage(ff, db, verb):
    found = await ff("flow", verb, "nonsense", *(["--yes"] if verb == "cancel" else []))
    assert found.code == 2
    assert "is not an id" in found.err


# graph


async def test_a_flow_is_drawn_as_a_tree_with_how_long_each_node_took(ff, broken, clock):
    found = await ff("flow", "graph", str(broken.id), "-o", "table")
    assert re.sub(r"\d+m?s", "T", found.out).splitlines() == [
        "test  open  4: 1 failed, 1 waiting, 1 skipped, 1 completed",
        "✔ load  completed in T  tests.work",
        "├─ ✘ price  failed in T  tests.work",
        "├─ ○ tax  waiting  tests.work",
        "└─ » total  skipped  tests.work  ← price, tax",
    ]
    await broken.take("tax")
    await clock.advance(seconds=7)
    assert "○ tax" not in (drawn := (await ff("flow", "graph", str(broken.id), "-o", "table")).out)
    assert "▶ tax  active for 7s" in drawn


async def test_a_tree_fits_the_terminal_and_has_no_colours_if_none_are_wanted(ff, broken):
    code, shown = await ff.on_terminal("flow", "graph", str(broken.id), columns=33)
    assert code == 0
    assert "\x1b" not in shown
    assert all(len(line) <= 33 for line in shown.splitlines())
    assert "└─ » total  skipped  ← price, tax" in shown


async def test_a_wide_fan_out_is_one_line_unless_unfolded(ff, db):
    middle = [f"resize-{at}" for at in range(20)]
    flow = await make_flow(
        db,
        nodes=["list", *middle, "album"],
        edges=[*(("list", one) for one in middle), *((one, "album") for one in middle)],
        groups=[Group("album", "quorum", 2)],
    )
    await flow.complete("list")
    await flow.fail("resize-3")
    lines = (await ff("flow", "graph", str(flow.id), "-o", "table")).out.splitlines()
    assert [re.sub(r"\d+m?s", "T", line) for line in lines[2:]] == [
        "✘ resize × 20  1 failed, 19 waiting, up to T  tests.work",
        "◌ album  waiting children  tests.work  ← 2 of 20: resize × 20",
    ]
    lines = (await ff("flow", "graph", str(flow.id), "-o", "table", "--unfold")).out.splitlines()
    assert len(lines) == 23


async def test_the_graph_itself_is_json(ff, broken):
    line = (await ff("flow", "graph", str(broken.id))).line
    assert {node["name"] for node in line["nodes"]} == {"load", "price", "tax", "total"}
    ids = {node["name"]: node["id"] for node in line["nodes"]}
    edges = {(edge["upstream_id"], edge["downstream_id"]): edge for edge in line["edges"]}
    assert edges[ids["price"], ids["total"]]["resolution"] == "impossible"
    assert {group["state"] for group in line["groups"]} == {"satisfied", "impossible"}


async def test_a_flow_is_drawn_into_a_file(ff, broken, tmp_path):
    file = tmp_path / "flow.svg"
    found = await ff("flow", "graph", str(broken.id), "--svg", str(file))
    assert (found.code, found.out) == (0, "")
    assert "drawn" in found.err
    root = ElementTree.parse(file).getroot()
    words = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"price", "4 nodes"} <= words
    assert any(re.fullmatch(r"failed · \S+ · tests.work", word) for word in words), words
    found = await ff("flow", "graph", str(broken.id), "--svg", "-")
    assert found.out == file.read_text(encoding="utf-8")


async def test_a_file_that_cannot_be_written_is_told(ff, flow, tmp_path):
    found = await ff("flow", "graph", str(flow.id), "--svg", str(tmp_path / "no" / "flow.svg"))
    assert found.code == 1
    assert "No such file or directory" in found.err


# cancel


async def test_a_flow_is_cancelled_with_its_members(ff, flow):
    await flow.complete("load")
    line = (
        await ff("flow", "cancel", str(flow.id), "--wait", "--yes", "-r", "wrong", "--actor", "ann")
    ).line
    assert (line["id"], line["outcome"], line["reason"]) == (full(flow.id), "cancelled", "wrong")
    assert line["members"] == 3, "the one that had completed is not among them"
    assert await flow.states() == {
        "load": "completed",
        "price": "cancelled",
        "tax": "cancelled",
        "total": "cancelled",
    }
    shown = (await ff("flow", "show", str(flow.id), "-o", "table")).out
    assert "by ann, cancel_all" in shown


async def test_without_wait_the_members_end_as_well(ff, flow):
    found = await ff("flow", "cancel", str(flow.id), "--yes")
    assert found.code == 0
    assert found.line["outcome"] == "scheduled"
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_running_members_may_come_to_their_end(ff, flow):
    await flow.complete("load")
    lease = await flow.take("tax")
    found = await ff(
        *("flow", "cancel", str(flow.id), "--policy", "cancel_pending", "--yes"),
        *("--wait", "--timeout", "1s", "-o", "table"),
    )
    assert found.code == 4
    assert "have not ended within 1 s" in found.err
    assert found.err.count(str(flow.id)) == 1
    assert await flow.state("tax") == "active"
    await flow.engine.complete(lease)
    assert await flow.states() == {
        "load": "completed",
        "price": "cancelled",
        "tax": "completed",
        "total": "cancelled",
    }


async def test_a_cancelled_flow_is_not_cancelled_again(ff, flow):
    await ff("flow", "cancel", str(flow.id), "--yes", "--wait", "-r", "first")
    found = await ff("flow", "cancel", str(flow.id), "--yes", "-o", "table")
    assert found.code == 4
    assert "already cancelled, with cancel_all (first)" in found.err


async def test_a_dry_run_changes_nothing(ff, flow):
    found = await ff("flow", "cancel", str(flow.id), "--dry-run", "--policy", "cancel_pending")
    assert found.line["outcome"] == "would_cancel"
    assert found.line["members"] == 4
    assert "cancelled" not in (await flow.states()).values()


@pytest.mark.slow
async def test_cancelling_needs_a_yes(ff, flow):
    found = await ff("flow", "cancel", str(flow.id))
    assert found.code == 2
    assert "--yes" in found.err
    code, shown = await ff.on_terminal("flow", "cancel", str(flow.id), typed="n\n")
    assert code == 1
    assert "ending 4 members" in shown
    assert "cancelled" not in (await flow.states()).values()
    code, _ = await ff.on_terminal("flow", "cancel", str(flow.id), "--wait", typed="y\n")
    assert code == 0
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_a_timeout_goes_with_wait(ff, flow):
    found = await ff("flow", "cancel", str(flow.id), "--yes", "--timeout", "5s")
    assert found.code == 2
    assert "requires --wait" in found.err


async def test_of_several_flows_the_missing_one_sets_the_exit_code(ff, flow):
    found = await ff("flow", "cancel", str(uuid4()), str(flow.id), "--yes", "--wait")
    assert found.code == 3
    assert [line["outcome"] for line in found.lines] == ["flow_not_found", "cancelled"]


# retry-failed


async def test_what_failed_runs_again_with_what_was_skipped_for_it(ff, broken):
    found = await ff("flow", "retry-failed", str(broken.id), "--dry-run")
    assert (found.line["outcome"], found.line["members"]) == ("would_retry", 1)
    assert await broken.state("price") == "failed"
    found = await ff("flow", "retry-failed", str(broken.id))
    assert found.code == 0
    assert (found.line["outcome"], found.line["members"]) == ("retried", 1)
    assert await broken.states() == {
        "load": "completed",
        "price": "waiting",
        "tax": "waiting",
        "total": "waiting_children",
    }


async def test_nothing_in_a_cancelled_flow_is_retried(ff, broken):
    await ff("flow", "cancel", str(broken.id), "--yes", "--wait")
    found = await ff("flow", "retry-failed", str(broken.id), "-o", "table")
    assert found.code == 4
    assert await broken.state("price") == "failed"


async def test_nothing_failed_is_no_mistake(ff, flow):
    found = await ff("flow", "retry-failed", str(flow.id), "-o", "table")
    assert (found.code, found.out) == (0, f"{flow.id}  retried  0 members\n")


async def test_lines_of_json_are_whole_objects(ff, flow, clock):
    await clock.advance(timedelta(minutes=5))
    for line in (await ff("flow", "ls")).out.splitlines():
        assert isinstance(json.loads(line), dict)
