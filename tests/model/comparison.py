"""What a call left in the tables beside what the model says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

import asyncpg

from support.flow_model import Backlog, Flow, Group
from support.flow_model import Edge as FlowEdge
from support.model import Event, Execution, Model, PastAttempt, Recorded

from . import reading
from .bench import Call, Disagreement

# Columns of ff.execution that the model leaves out: those that say where and what, not how it is;
# due_at, which is only a lower bound (an invariant watches it); and what the two lists below treat.
_UNSEEN = {
    "route",
    "policy",
    "priority",
    "tags",
    "history",
    "journal",
    "execution_id",
    "generation",
    "passed_on",
}
_SEEN = tuple(f.name for f in fields(Execution) if f.name not in _UNSEEN)
_DERIVED = ("public_state", "attempt_index")
_PAUSE = ("attempt_paused_at", "attempt_pause_cause")
_EVENT = tuple(f.name for f in fields(Event))
_ATTEMPT = tuple(f.name for f in fields(PastAttempt))
_STEP = tuple(f.name for f in fields(Recorded))
_FLOW = tuple(f.name for f in fields(Flow))
_EDGE = tuple(f.name for f in fields(FlowEdge))
_GROUP = tuple(f.name for f in fields(Group))
_BACKLOG = tuple(f.name for f in fields(Backlog) if f.name != "members")

LOOK = """
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next_xid,
  array(select e from ff.execution e
        where e.partition_key = 0
          and (e.xmin::text::bigint >= $1 or e.execution_id = any ($2::uuid[]))) as executions,
  array(select e.execution_id from ff.execution e where e.partition_key = 0) as ids,
  array(select v from ff.event v
        where v.partition_key = 0 and v.xid >= $1::text::xid8 order by v.event_id) as events,
  array(select a from ff.attempt a
        where a.partition_key = 0 and a.xmin::text::bigint >= $1
        order by a.execution_id, a.attempt_index) as attempts,
  array(select g from ff."grant" g where g.partition_key = 0) as grants,
  array(select k from ff.idempotency_key k where k.partition_key = 0) as keys,
  array(select b from ff.execution_body b
        where b.partition_key = 0 and b.xmin::text::bigint >= $1
          and (b.tags is not null or b.generation > 0)) as bodies,
  array(select s.execution_id || ' ' || s.name || ' ' || s.occurrence from ff.step s
        where s.partition_key = 0) as step_names,
  array(select s from ff.step s
        where s.partition_key = 0 and s.xmin::text::bigint >= $1) as steps,
  array(select w from ff.run_wait w where w.partition_key = 0) as waits,
  array(select t from ff.event_trim t where t.partition_key = 0) as event_trims,
  array(select f from ff.flow f where f.partition_key = 0) as flows,
  array(select d from ff.edge d where d.partition_key = 0) as edges,
  array(select y from ff.edge_group y where y.partition_key = 0) as groups,
  array(select b from ff.cancel_backlog b where b.partition_key = 0) as backlogs,
  array(select m from ff.cancel_backlog_member m where m.partition_key = 0) as backlog_members
"""


def compare(model: Model, call: Call, seen: asyncpg.Record) -> None:
    """Raise a Disagreement if rows, events, history, grants, keys or flows differ."""
    problems: list[str] = []

    def differ(what: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            problems.append(f"{what}: model {ours}, engine {theirs}")

    differ("executions", set(model.executions), set(seen["ids"]))
    for row in seen["executions"]:
        e = model.executions.get(row["execution_id"])
        if e is None:
            continue
        is_paused = e.attempt_state == "attempt_interrupted"
        for name in (*_SEEN, *_DERIVED):
            if is_paused or name not in _PAUSE:
                differ(f"{e.execution_id} {name}", getattr(e, name), row[name])
        differ(f"{e.execution_id} rank", 9000 - e.priority, row["rank"])
    for row in seen["bodies"]:
        e = model.executions[row["execution_id"]]
        differ(f"{e.execution_id} tags", e.tags, json.loads(row["tags"] or "{}"))
        differ(f"{e.execution_id} generation", e.generation, row["generation"])
    ours = sorted((asdict(v) for v in model.events), key=reading.order)
    theirs = sorted(({name: v[name] for name in _EVENT} for v in seen["events"]), key=reading.order)
    differ("events", ours, theirs)
    differ(
        "history",
        {(id_, past.attempt_index): asdict(past) for id_, past in model.buried},
        {
            (row["execution_id"], row["attempt_index"]): {name: row[name] for name in _ATTEMPT}
            for row in seen["attempts"]
        },
    )
    differ(
        "grants",
        {
            id_: (g.kind, g.worker_id, g.worker_instance_id, g.issued_at, g.expires_at)
            for id_, g in model.grants.items()
        },
        {
            g["execution_id"]: (
                g["kind"],
                g["worker_id"],
                g["worker_instance_id"],
                g["issued_at"],
                g["expires_at"],
            )
            for g in seen["grants"]
        },
    )
    differ(
        "keys",
        {
            name: (k.execution_id, k.scope, k.fingerprint, k.expires_at)
            for name, k in model.keys.items()
        },
        {
            (k["namespace"], k["key"]): (
                k["execution_id"],
                k["scope"],
                k["fingerprint"],
                k["expires_at"],
            )
            for k in seen["keys"]
        },
    )
    differ(
        "steps",
        {
            f"{id_} {name} {occurrence}"
            for id_, e in model.executions.items()
            for name, occurrence in e.journal
        },
        set(seen["step_names"]),
    )
    for row in seen["steps"]:
        e = model.executions.get(row["execution_id"])
        step = e.journal.get((row["name"], row["occurrence"])) if e is not None else None
        if step is not None:
            differ("step", asdict(step), {name: row[name] for name in _STEP})
    differ(
        "waits",
        {ids: (wait.wait_no, wait.ended_at) for ids, wait in model.waits.items()},
        {(w["waiter_id"], w["target_id"]): (w["wait_no"], w["ended_at"]) for w in seen["waits"]},
    )
    differ(
        "event trims",
        model.event_trims,
        {t["execution_id"]: t["due_at"] for t in seen["event_trims"]},
    )
    _compare_flows(model, seen, differ)
    if problems:
        raise Disagreement("\n  ".join([f"{call.function}({call.arguments})", *problems]))


def _compare_flows(
    model: Model, seen: asyncpg.Record, differ: Callable[[str, Any, Any], None]
) -> None:
    def compare(what: str, names: Sequence[str], ours: dict[Any, Any], theirs: Any) -> None:
        """Row by row; ours and theirs have the same keys."""
        differ(f"{what}s", set(ours), set(theirs))
        for key in ours.keys() & theirs.keys():
            for name in names:
                differ(f"{what} {key} {name}", getattr(ours[key], name), theirs[key][name])

    compare("flow", _FLOW, model.flows, {f["flow_id"]: f for f in seen["flows"]})
    compare("edge", _EDGE, model.edges, {d["edge_id"]: d for d in seen["edges"]})
    compare(
        "group",
        _GROUP,
        model.groups,
        {(y["downstream_id"], y["group_no"]): y for y in seen["groups"]},
    )
    compare("backlog", _BACKLOG, model.backlogs, {b["flow_id"]: b for b in seen["backlogs"]})
    differ(
        "backlog members",
        {(flow_id, id_) for flow_id, b in model.backlogs.items() for id_ in b.members},
        {(m["flow_id"], m["execution_id"]) for m in seen["backlog_members"]},
    )
