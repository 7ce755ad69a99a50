"""The nil UUID is nobody's id: whatever takes an id to store it refuses this one, and names the
field."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from support.database import Database, home
from support.factories import Engine, new_id, refused

NIL = UUID(int=0)
CLAIM = "p_worker_id => 'w', p_worker_instance_id => 'w-1', p_lease_ttl => interval '1 minute'"
GRANT = f"p_key => sha256('k'), {CLAIM}"
STAGE = "p_flow_id => {good}, p_expected_graph_revision => 0"
TIMES = "p_rule_no => 1, p_expected_next_at => ff.now(), p_next_at => ff.now() + interval '1 day'"
APP = "p_app => 'a', p_name => 'n'"

# The function, what it takes beside partition and namespace, the field.
REFUSED = [
    ("create_flow", "p_flow_id => {nil}, p_flow_kind => 'k'", "flow_id"),
    ("add_execution_to_flow", "p_flow_id => {nil}, p_execution_id => {good}", "flow_id"),
    ("add_execution_to_flow", "p_flow_id => {good}, p_execution_id => {nil}", "execution_id"),
    ("stage_dependency_edge", f"{STAGE}, p_edge_id => {{nil}}, p_upstream_id => {{good}}, "
     "p_downstream_id => {good}", "edge_id"),
    ("stage_dependency_edge", f"{STAGE}, p_edge_id => {{good}}, p_upstream_id => {{nil}}, "
     "p_downstream_id => {good}", "upstream_id"),
    ("stage_dependency_edge", f"{STAGE}, p_edge_id => {{good}}, p_upstream_id => {{good}}, "
     "p_downstream_id => {nil}", "downstream_id"),
    ("cancel_flow_header", "p_flow_id => {nil}", "flow_id"),
    ("cancel_flow_header", "p_flow_id => {good}, p_call_id => {nil}", "call_id"),
    ("ack_cancel_member", "p_flow_id => {nil}, p_execution_id => {good}", "flow_id"),
    ("ack_cancel_member", "p_flow_id => {good}, p_execution_id => {nil}", "execution_id"),
    ("claim_executions", f"p_claim_id => {{nil}}, p_lanes => null, p_tasks => null, "
     f"p_capabilities => '{{{{}}}}', p_limit => 1, {CLAIM}", "claim_id"),
    ("claim_execution", f"p_claim_id => {{nil}}, p_execution_id => {{good}}, {GRANT}", "claim_id"),
    ("claim_execution", f"p_claim_id => {{good}}, p_execution_id => {{nil}}, {GRANT}",
     "execution_id"),
    ("claim_resumed_execution", f"p_claim_id => {{nil}}, p_execution_id => {{good}}, {GRANT}",
     "claim_id"),
    ("issue_grant_and_claim", f"p_claim_id => {{nil}}, p_execution_id => {{good}}, {CLAIM}",
     "claim_id"),
    ("issue_grant_and_claim", f"p_claim_id => {{good}}, p_execution_id => {{nil}}, {CLAIM}",
     "execution_id"),
    ("reclaim_execution", f"p_claim_id => {{nil}}, p_execution_id => {{good}}, {GRANT}",
     "claim_id"),
    ("run_schedule", f"{APP}, p_execution_id => {{nil}}", "execution_id"),
    ("fire_schedule", f"{APP}, p_call_id => {{nil}}, {TIMES}, p_fire_ats => '{{{{}}}}', "
     "p_execution_ids => '{{}}'", "call_id"),
    ("fire_schedule", f"{APP}, p_call_id => {{good}}, {TIMES}, p_fire_ats => array[ff.now()], "
     "p_execution_ids => array[{nil}]", "execution_ids"),
]  # fmt: skip


async def test_whoever_gives_nil_for_an_id_is_told_so(db: Database, engine: Engine) -> None:
    for function, arguments, field in REFUSED:
        given = arguments.format(nil=f"'{NIL}'::uuid", good=f"'{new_id()}'::uuid")
        with refused("WF001", field=field):
            await db.fetch(
                f"select from ff.{function}(p_partition_key => '{home()}', "
                f"p_namespace => '{engine.namespace}', {given})"
            )
    with refused("WF001", field="schedule_id"):
        await db.fetch(
            "select from ff.declare_schedules(p_namespace => $1, p_app => 'a', "
            "p_version => array[1], p_names => array['n'], p_schedule_ids => array[$2::uuid], "
            "p_route_ids => array[$3::bigint], p_everys => array[interval '1 day'], "
            "p_next_ats => array[ff.now()])",
            engine.namespace,
            NIL,
            await engine.register(),
        )


async def test_nothing_is_submitted_with_nil_for_an_id(db: Database, engine: Engine) -> None:
    route = await engine.register()
    for given, field in (({"id": NIL}, "execution_id"), ({"parent": NIL}, "parent_id")):
        answer = await engine.submit(**given)
        assert (answer.word, answer.detail and answer.detail["field"]) == ("invalid", field)

    def item(**changes: Any) -> dict[str, Any]:
        return {"execution_id": str(new_id()), "route_id": route, **changes}

    for changes, field in (
        ({"execution_id": str(NIL)}, "execution_id"),
        ({"parent_id": str(NIL)}, "parent_id"),
    ):
        told = json.loads(
            await db.fetchval(
                f"select ff.submit_json('{home()}', $1, $2::text::jsonb)",
                engine.namespace,
                json.dumps([item(**changes)]),
            )
        )
        assert told["items"][0]["detail"]["field"] == field
    flow: dict[str, Any] = {"flow_id": str(new_id()), "flow_kind": "k"}
    for changes, field in (
        ({"flow_id": str(NIL), "nodes": [item(name="n")]}, "flow_id"),
        ({"parent_id": str(NIL), "nodes": [item(name="n")]}, "parent_id"),
        ({"nodes": [item(name="n", execution_id=str(NIL))]}, "nodes[0].execution_id"),
    ):
        told = json.loads(
            await db.fetchval(
                f"select ff.submit_flow('{home()}', $1, $2::text::jsonb)",
                engine.namespace,
                json.dumps(flow | changes),
            )
        )
        assert (told["outcome"], told["detail"]["field"]) == ("invalid", field)
    assert await db.fetchval("select count(*) from ff.execution") == 0
