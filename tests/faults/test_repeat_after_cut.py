"""Every call that writes may be repeated: after the connection was cut behind its commit, and
while the first call still runs. One effect, and the answer that an undisturbed call gets."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.gates import Gates
from flowfabric.client.hooks import HookDeclaration
from flowfabric.client.schedules import Declaration
from flowfabric.client.submissions import json_arguments, read_json
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Claimed, Failure, Route, Submission, Submitted
from flowfabric.core.flow import Edge, EdgeGroupPolicy, Graph, Node
from flowfabric.core.ids import ExecutionId, child_id, mint, mint_flow
from flowfabric.core.limit import Budget, Gate, Limit
from flowfabric.core.policy import Fixed, Retry, policy_json
from flowfabric.core.schedule import every_rule
from flowfabric.core.signal import Signal, Wait
from flowfabric.core.states import FailureClass, HookKind, StreamMode
from flowfabric.core.step import Step
from flowfabric.core.stream import Frame, FrameEncoding, OutgoingFrame
from flowfabric.core.subscription import EventFilter
from flowfabric.core.task import TaskDeclaration
from flowfabric.db import functions
from support.clock import Clock
from support.database import Database
from support.proofs import drawn
from worker.waiting import eventually

from .proxy import Cut, Proxy, proxied

SEED = 7
LONG = timedelta(hours=10)
FIVE_HOURS = timedelta(hours=5)
# The reconciler does not come: what one scenario leaves is not for another.
NEVER = timedelta(days=365)

# A backend that is asked to waits inside its statement, at the end of a change to some table.
GATES = """
create table ff_test.held (pid integer primary key, place text not null);
create function ff_test.gate() returns trigger language plpgsql security definer as $$
begin
  for i in 1..2000 loop
    exit when not exists (
      select from ff_test.held h where h.pid = pg_backend_pid() and h.place = tg_table_name);
    perform pg_sleep(0.002);
  end loop;
  return null;
end;
$$;
create trigger gate after insert or update on ff.execution
  for each statement execute function ff_test.gate();
create trigger gate after insert on ff.event
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.execution_body
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.claim_slot
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.idempotency_key
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.grant
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.minute
  for each statement execute function ff_test.gate();
create trigger gate after insert on ff.signal_schema
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.approval
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.lane
  for each statement execute function ff_test.gate();
create trigger gate after insert on ff.route
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.worker
  for each statement execute function ff_test.gate();
create trigger gate after insert on ff.worker_event
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.schedule
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.hook
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.task
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.schedule_app
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.step
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.waitpoint
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.stream
  for each statement execute function ff_test.gate();
create trigger gate after insert or delete on ff.stream_chunk
  for each statement execute function ff_test.gate();
create trigger gate after insert on ff.signal
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.run_wait
  for each statement execute function ff_test.gate();
create trigger gate after delete on ff.attempt
  for each statement execute function ff_test.gate();
create trigger gate after insert or delete on ff.event_trim
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.flow
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.edge
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.edge_group
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.cancel_backlog
  for each statement execute function ff_test.gate();
create trigger gate after insert or delete on ff.cancel_backlog_member
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.quota
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.quota_change
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.gate
  for each statement execute function ff_test.gate();
create trigger gate after insert or delete on ff.gate_ticket
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.budget
  for each statement execute function ff_test.gate();
create trigger gate after insert or update on ff.budget_dimension
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.budget_ledger
  for each statement execute function ff_test.gate();
create trigger gate after insert or delete on ff.budget_report
  for each statement execute function ff_test.gate();
create trigger gate after insert or update or delete on ff.subscription
  for each statement execute function ff_test.gate();
"""

# All that a call may leave behind, counted.
COUNTS = """
select 'execution ' || e.public_state as what, count(*)::bigint from ff.execution e group by 1
union all select 'event ' || v.kind, count(*) from ff.event v group by 1
union all select 'attempts in the history', count(*) from ff.attempt
union all select 'bodies', count(*) from ff.execution_body
union all select 'keys', count(*) from ff.idempotency_key
union all select 'steps', count(*) from ff.step
union all select 'waits', count(*) from ff.run_wait
union all select 'waitpoints ' || coalesce(w.close_reason, 'open'), count(*) from ff.waitpoint w
group by 1
union all select 'signals', count(*) from ff.signal
union all select 'streams', count(*) from ff.stream
union all select 'chunks ' || c.mode, count(*) from ff.stream_chunk c group by 1
union all select 'summaries of version ' || y.version, count(*) from ff.stream_summary y group by 1
union all select 'signals in the inbox', count(*) from ff.signal_inbox
union all select 'suspensions ' || coalesce(p.close_reason, 'open'), count(*) from ff.suspension p
group by 1
union all select 'wakes that are owed', count(*) from ff.execution where wakes_pending
union all select 'lanes', count(*) from ff.lane
union all select 'routes', count(*) from ff.route
union all select 'claim slots', count(*) from ff.claim_slot
union all select 'worker event ' || w.kind, count(*) from ff.worker_event w group by 1
union all select 'workers', count(*) from ff.worker
union all select 'lanes ' || l.state, count(*) from ff.lane l group by 1
union all select 'events to be trimmed', count(*) from ff.event_trim
union all select 'schedules ' || s.state, count(*) from ff.schedule s group by 1
union all select 'times fired', coalesce(sum(s.fired_count), 0) from ff.schedule s
union all select 'declarations that changed', coalesce(sum(a.generation), 0) from ff.schedule_app a
union all select 'flows ' || coalesce(f.cancel_policy::text, 'open'), count(*) from ff.flow f
group by 1
union all select 'revisions of graphs', coalesce(sum(f.graph_revision), 0) from ff.flow f
union all select 'edges ' || coalesce(g.resolution::text, 'staged'), count(*) from ff.edge g
group by 1
union all select 'groups ' || y.state || ' ' || y.policy, count(*) from ff.edge_group y group by 1
union all select 'siblings to be cancelled', coalesce(sum(cardinality(y.cancel_members)), 0)
from ff.edge_group y
union all select 'backlogs', count(*) from ff.cancel_backlog
union all select 'members on a backlog', count(*) from ff.cancel_backlog_member
union all select 'quotas', count(*) from ff.quota
union all select 'quotas that were changed', count(*) from ff.quota_change
union all select 'gates', count(*) from ff.gate
union all select 'slots taken', coalesce(sum(s.n), 0) from (
  select g.running as n from ff.gate g
  union all (select -r.slots from ff.gate_release r)) s
union all select 'starts', coalesce(sum(n), 0) from ff.gate g cross join unnest(g.slices) n
union all select 'tickets', count(*) from ff.gate_ticket
union all select 'counted', coalesce(sum(event_count), 0) from ff.minute
union all select 'subscriptions', count(*) from ff.subscription
union all select 'subscriptions that are leased', count(s.holder_id) from ff.subscription s
union all select 'failures of webhooks', coalesce(sum(s.failure_count), 0) from ff.subscription s
union all select 'webhooks disabled', count(s.disabled_at) from ff.subscription s
union all select 'acknowledgements', coalesce(sum(s.ack_no), 0) from ff.subscription s
union all select 'events acknowledged', coalesce(sum(s.acked_count), 0) from ff.subscription s
union all select 'budgets', count(*) from ff.budget
union all select 'limits that were raised', count(d.raised_hard) from ff.budget_dimension d
union all select 'usage', coalesce(sum(d.usage), 0) from ff.budget_dimension d
union all select 'spends', coalesce(sum(y.amount), 0) from ff.budget_ledger y
union all select 'reports', count(*) from ff.budget_report
union all select 'grants of kind ' || g.kind, count(*) from ff.grant g group by 1
union all select 'sum of ' || n.name, n.value from (
  select sum(version) as versions, sum(epoch) as epochs, sum(total_attempt_count) as attempts,
         sum(retry_count) as retries, sum(reclaim_count) as reclaims from ff.execution) s
cross join lateral (values ('versions', s.versions), ('epochs', s.epochs),
  ('attempts', s.attempts), ('retries', s.retries), ('reclaims', s.reclaims)) n(name, value)
"""

# What writes, whether by itself or through a helper. A function that locks rows is not a read.
WRITES = re.compile(
    r"\b(insert\s+into|update\s+ff\.|delete\s+from|merge\s+into|truncate|nextval|execute\s+)"
    r"|\bfor\s+(no\s+key\s+)?(update|share)\b",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Stage:
    """One run's own corner of the database, so that runs do not meet."""

    client: FlowFabric
    db: Database
    clock: Clock
    number: int
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def route(self) -> Route:
        return Route("default", f"lane-{self.number}", f"task-{self.number}")

    @property
    def instance(self) -> str:
        return f"worker-{self.number}"

    def submission(self, **options: Any) -> Submission:
        return Submission(id=mint(), route=self.route, payload=b"null", **options)

    async def submitted(self, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            await self.client.executions.submit(self.submission(**options))

    async def claimed(self, times: int = 1, ttl: timedelta = LONG, **options: Any) -> None:
        await self.submitted(times, **options)
        self.state["claimed"] = await self.claim(times, ttl)
        assert len(self.state["claimed"]) == times

    async def claim(self, limit: int, ttl: timedelta = LONG) -> list[Claimed]:
        return await self.client.executions.claim(
            worker_id="worker",
            worker_instance_id=self.instance,
            tasks=[self.route.task],
            limit=limit,
            lease_ttl=ttl,
        )

    async def now(self) -> datetime:
        """The time of the database. A statement on distributed tables cannot call the clock."""
        now: datetime = await self.db.fetchval("select ff.now()")
        return now

    async def row(self, execution_id: Any) -> Any:
        return await self.db.fetchrow(
            "select * from ff.execution where execution_id = $1", execution_id
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A call: what must be there before, the call itself, and where it can be held up."""

    name: str
    function: str
    prepare: Callable[[Stage], Awaitable[None]]
    act: Callable[[Stage], Awaitable[Any]]
    places: tuple[str, ...]
    # A sweep does what is left to do: its repeat may find nothing, and says so.
    is_sweep: bool = False
    # A claim whose repeat found everything locked by the original: it was told "nothing", so the
    # original, which came second to the slot, must have been undone.
    may_give_way: bool = False


async def _nothing(stage: Stage) -> None:
    await stage.client.lanes.register(stage.route)


async def _submit(stage: Stage) -> Any:
    submission = stage.submission(tags={"team.name": "x"}, delay=None)
    answer = await stage.client.executions.submit(submission)
    assert answer.id == submission.id
    return answer.is_duplicate


async def _submit_keyed(stage: Stage) -> Any:
    submission = stage.submission(key=f"key-{stage.number}", key_fingerprint=b"same")
    answer = await stage.client.executions.submit(submission)
    assert answer.id == submission.id
    named = await stage.db.fetchval(
        "select execution_id from ff.idempotency_key where key = $1", submission.key
    )
    assert named == submission.id.uuid
    return answer.is_duplicate


async def _submit_json(stage: Stage) -> Any:
    submission = stage.submission(tags={"team.name": "x"})
    place = await stage.client.transactional.find_destination([submission])
    rows = await stage.client.database.call(
        functions.SUBMIT_JSON, **json_arguments(place, [submission])
    )
    (answer,) = read_json(rows[0]["submit_json"], [submission])
    assert isinstance(answer, Submitted)
    assert answer.id == submission.id
    return answer.is_duplicate


async def _submit_many(stage: Stage) -> Any:
    submissions = [stage.submission(priority=n) for n in range(20)]
    answers = await stage.client.executions.submit_many(submissions)
    assert [answer.id for answer in answers] == [submission.id for submission in submissions]
    return [answer.is_duplicate for answer in answers]


async def _claim(stage: Stage) -> Any:
    claimed = await stage.claim(3)
    rows = await stage.db.fetch(
        "select execution_id, lease_id, epoch from ff.execution where worker_instance_id = $1",
        stage.instance,
    )
    known = {(one.execution_id, one.lease_id, one.epoch) for one in claimed}
    assert {tuple(row) for row in rows} == known, "leased, and the holder does not know it"
    return [(one.claim_kind, one.attempt, one.epoch, one.payload) for one in claimed]


async def _interrupted(stage: Stage) -> None:
    await stage.claimed(3)
    assert await stage.client.leases.release(stage.state["claimed"]) == {}


async def _complete(stage: Stage) -> Any:
    answers = await asyncio.gather(
        *(
            stage.client.executions.complete(one, b"[%d]" % index)
            for index, one in enumerate(stage.state["claimed"])
        )
    )
    results = [(await stage.row(one.execution_id))["result"] for one in stage.state["claimed"]]
    return answers, results


async def _fail(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.executions.fail(
        claimed, Failure(FailureClass.TRANSIENT, "cut", "test", b"detail")
    )
    row = await stage.row(claimed.execution_id)
    assert row["delayed_until"] == answer.delayed_until
    return answer.will_retry, answer.next_attempt, row["failure_reason"]


async def _release(stage: Stage) -> Any:
    return await stage.client.leases.release(stage.state["claimed"])


async def _renew(stage: Stage) -> Any:
    held = stage.state["claimed"]
    for _ in range(100):
        lost, busy = await stage.client.leases.renew(held, LONG * 2)
        if not busy:
            break
        # As the heartbeat does: a busy lease goes into the next beat.
        await asyncio.sleep(0.01)
    for one in held:
        row = await stage.row(one.execution_id)
        assert row["lease_expires_at"] > one.lease_expires_at + timedelta(hours=9)
    return lost, busy


async def _expired(stage: Stage) -> None:
    await stage.claimed(3, ttl=timedelta(seconds=1))
    await stage.clock.advance(seconds=2)


async def _due(stage: Stage) -> None:
    # What another scenario left to newer code is out of the way.
    await stage.clock.advance(seconds=10)
    await stage.client.executions.promote_delayed()
    await stage.submitted(3, delay=timedelta(seconds=1))
    await stage.clock.advance(seconds=2)


async def _expire(stage: Stage) -> Any:
    return (await stage.client.leases.expire())[0]


async def _promote(stage: Stage) -> Any:
    return (await stage.client.executions.promote_delayed())[0]


async def _tags(stage: Stage) -> Any:
    ids = [one.id for one in stage.state["claimed"]]
    answer = await stage.client.executions.set_tags_of(ids, {"team.name": str(stage.number)})
    found = [await stage.client.executions.tag(id, "team.name") for id in ids]
    return answer, found == [str(stage.number)] * 3


async def _register(stage: Stage) -> Any:
    found = await stage.client.lanes.register(stage.route)
    stored = await stage.db.fetchval(
        "select route_id from ff.route where task = $1", stage.route.task
    )
    return found == stored


def _on_one(
    operation: str, *args: Any, noun: str = "executions", **options: Any
) -> Callable[[Stage], Awaitable[Any]]:
    """An operation on the one execution there is. Its repeat may be told that it was applied."""

    async def act(stage: Stage) -> Any:
        row = await stage.db.fetchrow(
            "select execution_id from ff.execution_list where task = $1", stage.route.task
        )
        id = ExecutionId.of(0, row["execution_id"])
        answer = await getattr(getattr(stage.client, noun), operation)(id, *args, **options)
        stored = await stage.row(id.uuid)
        return answer.public_state, answer.version, stored["cause"], stored["replay_count"]

    return act


def _by_holder(operation: str, *args: Any, **options: Any) -> Callable[[Stage], Awaitable[Any]]:
    """An operation of the holder on the one execution it has."""

    async def act(stage: Stage) -> Any:
        (claimed,) = stage.state["claimed"]
        await getattr(stage.client.executions, operation)(claimed, *args, **options)
        row = await stage.row(claimed.execution_id)
        return row["public_state"], row["version"], row["cause"], row["progress_percent"]

    return act


async def _record(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    names = ("load", "load", "send")
    steps = [
        Step(name=name, occurrence=names[:at].count(name), position=at, value=name.encode())
        for at, name in enumerate(names)
    ]
    found = await asyncio.gather(*(stage.client.steps.record(claimed, one) for one in steps))
    stored = await stage.client.steps.list(claimed.id)
    return [one.value for one in found], [one.value for one in stored], found == stored


async def _stream(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    queue = stage.client.streams.sender.queue(claimed, 0)
    for payload, mode in ((b"a", "durable"), (b"b", "durable"), (b'{"a": 1}', "summary")):
        queue.put_nowait(OutgoingFrame(payload, FrameEncoding.TEXT, "text", StreamMode(mode)))
    await queue.flush()
    items = (await stage.client.streams.read(claimed.id)).items
    summary = await stage.client.streams.summary(claimed.id)
    assert summary is not None
    return [one.payload for one in items if isinstance(one, Frame)], summary.version


async def _stream_expired(stage: Stage) -> None:
    await stage.claimed()
    await _stream(stage)
    (claimed,) = stage.state["claimed"]
    await stage.db.execute(
        "update ff.stream set expires_at = $2 where execution_id = $1",
        claimed.execution_id,
        await stage.now(),
    )


async def _expire_streams(stage: Stage) -> Any:
    return (await stage.client.streams.expire())[0]


def _wait(take: bool = False) -> Wait:
    return Wait(
        name="approve",
        occurrence=0,
        position=0,
        is_sequential=True,
        condition={"signal": "approve"},
        timeout=LONG,
        take=take,
    )


async def _with_signal(stage: Stage) -> None:
    await stage.claimed()
    (claimed,) = stage.state["claimed"]
    await stage.client.signals.deliver(claimed.id, Signal(name="approve", payload=b"1"))


async def _ask(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.signals.ask(claimed, _wait(take=True))
    (signal,) = await stage.client.signals.list(claimed.id)
    return answer.word, answer.taken_as, answer.value, signal.wait_name


async def _with_open_wait(stage: Stage) -> None:
    await stage.claimed()
    (claimed,) = stage.state["claimed"]
    await stage.client.signals.ask(claimed, _wait())


async def _suspend(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.signals.suspend(claimed, waits=[("approve", 0)])
    row = await stage.row(claimed.execution_id)
    return answer, row["public_state"], row["version"], row["cause"]


async def _waitpoint(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    id = stage.state.setdefault("waitpoint", uuid4())
    token = await stage.client.signals.create_waitpoint(claimed, id, "payment")
    return token == await stage.client.signals.read_token(claimed.id, id)


async def _with_waitpoint(stage: Stage) -> None:
    await stage.claimed()
    (claimed,) = stage.state["claimed"]
    stage.state["waitpoint"] = uuid4()
    await stage.client.signals.create_waitpoint(
        claimed, stage.state["waitpoint"], "payment", expires_in=timedelta(seconds=1)
    )


async def _close_waitpoint(stage: Stage) -> Any:
    """A repeat is told that it was closed before."""
    (claimed,) = stage.state["claimed"]
    await stage.client.signals.close_waitpoint(claimed.id, stage.state["waitpoint"])
    return await stage.client.signals.read_token(claimed.id, stage.state["waitpoint"])


async def _register_types(stage: Stage) -> Any:
    # A client asks for each type once.
    type = {"type": "integer", "title": str(uuid4())}
    return len(await stage.client.signals.register_types([type]))


async def _approval(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    ids = stage.state.setdefault("approval", [uuid4(), uuid4()])
    (token,) = await stage.client.approvals.create(
        claimed, ids[0], [("ada", ids[1])], "Ship?", details=None, need=1, deny=1
    )
    return token == await stage.client.signals.read_token(claimed.id, ids[1])


async def _with_approval(stage: Stage) -> None:
    await stage.claimed()
    await _approval(stage)


async def _answer_approval(stage: Stage) -> Any:
    """A repeat finds its own answer."""
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.approvals.answer(claimed.id, is_approved=True, actor="ada")
    (one,) = await stage.client.approvals.of(claimed.id)
    return answer.is_duplicate, answer.effect, one.approved_count


async def _waitpoint_due(stage: Stage) -> None:
    await _with_waitpoint(stage)
    await stage.clock.advance(seconds=2)


async def _expire_waitpoints(stage: Stage) -> Any:
    return (await stage.client.signals.expire_waitpoints())[0]


async def _suspended(stage: Stage) -> None:
    await _with_open_wait(stage)
    (claimed,) = stage.state["claimed"]
    await stage.client.signals.suspend(claimed, waits=[("approve", 0)])
    stage.state["signal"] = Signal(name="approve", payload=b"1")


async def _deliver(stage: Stage) -> Any:
    """A repeat is told that the signal is a duplicate."""
    (claimed,) = stage.state["claimed"]
    signal = stage.state["signal"]
    sent = await stage.client.signals.deliver(claimed.id, signal)
    # While the first call still holds the row, the repeat stores nothing and wakes nobody.
    await stage.client.signals.notice()
    (stored,) = await stage.client.signals.list(claimed.id)
    return sent.id == signal.id, stored.id == signal.id


async def _signal_stored(stage: Stage) -> None:
    await _suspended(stage)
    (claimed,) = stage.state["claimed"]
    async with stage.db.conn.transaction():
        await stage.db.fetchrow(
            "select from ff.deliver_signals(0::smallint, null, array[$1::uuid], array[$2::uuid], "
            "array['approve'], array[null::bytea], p_is_transactional => true)",
            claimed.execution_id,
            stage.state["signal"].id,
        )


async def _notice(stage: Stage) -> Any:
    return (await stage.client.signals.notice())[0]


async def _suspension_due(stage: Stage) -> None:
    await _suspended(stage)
    # Not by the clock: leases of other scenarios would end, too.
    (claimed,) = stage.state["claimed"]
    for change in ("ff.suspension set timeout_at", "ff.step set until_at"):
        await stage.db.execute(
            f"update {change} = $2 where execution_id = $1",
            claimed.execution_id,
            await stage.now(),
        )


async def _time_out(stage: Stage) -> Any:
    return (await stage.client.signals.expire_suspensions())[0]


async def _with_children(stage: Stage) -> None:
    await stage.claimed()
    (parent,) = stage.state["claimed"]
    stage.state["children"] = [child_id(parent.id, 0, "child", number) for number in range(2)]
    for id in stage.state["children"]:
        await stage.client.executions.submit(
            Submission(
                id=id, route=stage.route, payload=b"null", parent_id=parent.id, with_parent=True
            )
        )


async def _submit_child(stage: Stage) -> Any:
    (parent,) = stage.state["claimed"]
    answer = await stage.client.executions.submit(
        Submission(
            id=child_id(parent.id, 0, "late", 0),
            route=stage.route,
            payload=b"",
            parent_id=parent.id,
            with_parent=True,
            trace_context="{}",
        )
    )
    return answer.is_duplicate


async def _wait_for_runs(stage: Stage) -> Any:
    (parent,) = stage.state["claimed"]
    open_ = await stage.client.executions.wait_for_runs(parent, stage.state["children"])
    row = await stage.row(parent.execution_id)
    return open_, row["public_state"], row["version"], row["wait_no"], row["wait_left"]


async def _cancel_parent(stage: Stage) -> Any:
    (parent,) = stage.state["claimed"]
    await stage.client.executions.cancel(parent.id)
    return [await stage.client.executions.state(id) for id in stage.state["children"]]


async def _replay_fresh(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.executions.replay(claimed.id, fresh=True)
    return answer.public_state, answer.version, await stage.client.steps.list(claimed.id)


async def _ended_with_steps(stage: Stage) -> None:
    await stage.claimed()
    await _record(stage)
    await stage.client.executions.complete(stage.state["claimed"][0])


async def _owing(stage: Stage) -> None:
    """Three targets have ended, and whoever waits for them was locked."""
    await stage.claimed(4)
    waiter, *targets = stage.state["claimed"]
    await stage.client.executions.wait_for_runs(waiter, [one.id for one in targets])
    other = await stage.db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where partition_key = 0 and execution_id = $1 "
            "for no key update",
            waiter.execution_id,
        )
        await stage.db.fetch(
            "select * from ff.complete_executions(0::smallint, null, $1::uuid[], $2::uuid[], "
            "$3::bigint[], $4::uuid[], null)",
            [one.execution_id for one in targets],
            [one.lease_id for one in targets],
            [one.epoch for one in targets],
            [one.attempt_id for one in targets],
        )


async def _resolve(stage: Stage) -> Any:
    return (await stage.client.executions.resolve_wakes())[0]


async def _cancel_held(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    answer = await stage.client.executions.cancel(
        claimed.id, source="lease_holder", claimed=claimed
    )
    return answer.outcome, answer.version


async def _completed(stage: Stage) -> None:
    await stage.claimed()
    await stage.client.executions.complete(stage.state["claimed"][0])


async def _blocked(stage: Stage) -> None:
    await stage.submitted()
    await _on_one("block_for_admission", "waiting_for_budget")(stage)


async def _late(stage: Stage) -> None:
    await stage.submitted(3, deadline=timedelta(seconds=1))
    await stage.clock.advance(seconds=2)


async def _expire_executions(stage: Stage) -> Any:
    return (await stage.client.executions.expire())[0]


def _worker(stage: Stage) -> dict[str, Any]:
    return {"worker_id": "worker", "worker_instance_id": stage.instance}


async def _waits_alone(stage: Stage) -> None:
    submission = stage.submission()
    await stage.client.executions.submit(submission)
    stage.state["id"] = submission.id


async def _lost_alone(stage: Stage) -> None:
    await stage.claimed(ttl=timedelta(seconds=1))
    await stage.clock.advance(seconds=2)
    stage.state["id"] = stage.state["claimed"][0].id


async def _granted(stage: Stage) -> None:
    await _waits_alone(stage)
    stage.state["grant"] = await stage.client.grants.issue_claim_grant(
        stage.state["id"], **_worker(stage), ttl=timedelta(minutes=1)
    )


async def _granted_to_resume(stage: Stage) -> None:
    await stage.claimed()
    assert await stage.client.leases.release(stage.state["claimed"]) == {}
    stage.state["grant"] = await stage.client.grants.issue_claim_grant(
        stage.state["claimed"][0].id, **_worker(stage), ttl=timedelta(minutes=1)
    )


async def _granted_to_reclaim(stage: Stage) -> None:
    await _lost_alone(stage)
    stage.state["grant"] = await stage.client.grants.issue_reclaim_grant(
        stage.state["id"], **_worker(stage), ttl=timedelta(minutes=1)
    )


async def _granted_and_over(stage: Stage) -> None:
    await stage.clock.advance(seconds=61)
    await stage.client.grants.reap()  # what other runs left
    await _granted(stage)
    await stage.clock.advance(seconds=61)


def _issue(name: str) -> Callable[[Stage], Awaitable[Any]]:
    async def act(stage: Stage) -> Any:
        grant = await getattr(stage.client.grants, name)(stage.state["id"], **_worker(stage))
        stored = await stage.db.fetchrow(
            'select key_hash = sha256($2), expires_at from ff."grant" where execution_id = $1',
            grant.id.uuid,
            grant.key,
        )
        assert tuple(stored) == (True, grant.expires_at), "granted, and the key does not fit"
        return grant.kind

    return act


def _use(name: str) -> Callable[[Stage], Awaitable[Any]]:
    async def act(stage: Stage) -> Any:
        grant = stage.state["grant"]
        claimed = await getattr(stage.client.grants, name)(
            grant, worker_instance_id=stage.instance, lease_ttl=LONG
        )
        return await _held(stage, claimed)

    return act


async def _grant_and_claim(stage: Stage) -> Any:
    claimed = await stage.client.grants.issue_grant_and_claim(stage.state["id"], lease_ttl=LONG)
    return await _held(stage, claimed)


async def _held(stage: Stage, claimed: Claimed) -> Any:
    row = await stage.row(claimed.execution_id)
    assert (row["lease_id"], row["epoch"]) == (claimed.lease_id, claimed.epoch)
    return claimed.claim_kind, claimed.attempt, claimed.epoch, claimed.payload


async def _reap(stage: Stage) -> Any:
    return (await stage.client.grants.reap())[0]


# The registry's words for a repeat are `refreshed` and `not_registered`: what counts is the state.


async def _register_worker(stage: Stage) -> Any:
    await stage.client.workers.register(
        worker_id="worker", worker_instance_id=stage.instance, liveness_ttl=timedelta(days=7)
    )
    return await _is_listed(stage)


async def _registered(stage: Stage) -> None:
    assert await _register_worker(stage)


async def _beat(stage: Stage) -> Any:
    return await stage.client.workers.heartbeat([stage.instance])


async def _drain_worker(stage: Stage) -> Any:
    await stage.client.workers.drain(stage.instance, "deploy")
    (found,) = [
        worker
        for worker in await stage.client.workers.list(limit=10_000)
        if worker.worker_instance_id == stage.instance
    ]
    return found.drain_asked_at is not None


async def _mark_dead(stage: Stage) -> Any:
    await stage.client.workers.mark_dead(stage.instance, "gone")
    return await _is_listed(stage)


async def _is_listed(stage: Stage) -> bool:
    listed = await stage.client.workers.list(limit=10_000)
    return stage.instance in [worker.worker_instance_id for worker in listed]


async def _silent(stage: Stage) -> None:
    for n in range(3):
        await stage.client.workers.register(
            worker_id="worker",
            worker_instance_id=f"{stage.instance}-{n}",
            liveness_ttl=timedelta(seconds=1),
        )
    await stage.clock.advance(seconds=2)


async def _sweep(stage: Stage) -> Any:
    return (await stage.client.workers.sweep())[0]


async def _expire_of_worker(stage: Stage) -> Any:
    # What the original has locked the repeat leaves to it; the count of events tells.
    return await stage.client.workers.mark_dead(stage.instance, "gone", expire_leases=True)


async def _pause(stage: Stage) -> Any:
    info = await stage.client.lanes.pause(stage.route.lane, reason="flood", actor="ann")
    return info.state, info.reason, info.changed_by


async def _another_limited_lane(stage: Stage) -> None:
    """The first limited lane of a namespace makes the quota that all its lanes share."""
    await _nothing(stage)
    other = replace(stage.route, lane=f"other-{stage.number}")
    await stage.client.lanes.register(other)
    await stage.client.lanes.set(other.lane, concurrency=1, reason="flood", actor="ann")


async def _limit_lane(stage: Stage) -> Any:
    info = await stage.client.lanes.set(
        stage.route.lane, concurrency=7, weights={"acme": 3}, reason="flood", actor="ann"
    )
    return info.concurrency, info.weights, info.is_set


async def _ended(stage: Stage, retention: int = 1) -> None:
    await stage.claimed(3, policy=f'{{"retention_ms": {retention}}}')
    for claimed in stage.state["claimed"]:
        await stage.client.executions.complete(claimed)
    await stage.clock.advance(seconds=2)


async def _trim(stage: Stage) -> Any:
    return (await stage.client.retention.trim())[0]


async def _trim_executions(stage: Stage) -> Any:
    return (await stage.client.retention.trim_executions())[0]


async def _blocked_by_route(stage: Stage) -> None:
    """Blocked although a worker that can run it is there."""
    await stage.client.workers.register(
        worker_id="worker", worker_instance_id=stage.instance, liveness_ttl=timedelta(days=7)
    )
    one = stage.submission()
    await stage.client.executions.submit(one)
    await stage.client.executions.block_for_admission(one.id, "waiting_for_capable_worker")


async def _unblock_all(stage: Stage) -> Any:
    return (await stage.client.executions.unblock_all())[0]


async def _trimmed(stage: Stage) -> None:
    # The events that earlier scenarios left to be trimmed must not be counted here, and their
    # subscriptions would keep the events of this one.
    await stage.db.execute("delete from ff.subscription")
    await stage.db.execute("update ff.event_trim set due_at = $1", await stage.now())
    await stage.client.retention.trim_events()
    await _ended(stage)
    assert await _trim(stage) == 3
    await stage.db.execute("update ff.event_trim set due_at = $1", await stage.now())


async def _trim_events(stage: Stage) -> Any:
    return (await stage.client.retention.trim_events())[0]


async def _over(stage: Stage) -> None:
    for n in range(3):
        await stage.submitted(
            key=f"over-{stage.number}-{n}",
            key_fingerprint=b"same",
            key_window=timedelta(seconds=1),
        )
    await stage.clock.advance(seconds=2)


async def _trim_keys(stage: Stage) -> Any:
    return (await stage.client.retention.trim_keys())[0]


async def _uncounted(stage: Stage) -> None:
    """Three executions whose events are the only ones that are not counted."""
    while (await stage.client.minutes.roll_up())[0]:
        pass
    await stage.claimed(3)


async def _roll_up(stage: Stage) -> Any:
    return (await stage.client.minutes.roll_up())[0]


def _declaration(stage: Stage) -> Declaration:
    return Declaration(
        name=f"tick-{stage.number}",
        submission=stage.submission(),
        rule=every_rule(timedelta(hours=1)),
    )


async def _declare(stage: Stage) -> Any:
    app = f"app-{stage.number}"
    declared = await stage.client.schedules.declare(app, [1], [_declaration(stage)])
    return declared.outcome, declared.generation


async def _declare_hooks(stage: Stage) -> Any:
    hook = _declaration(stage).submission
    return await stage.client.hooks.declare(
        hook.route.namespace,
        [1],
        [f"task-of-{stage.number}"],
        [HookDeclaration(task=f"task-of-{stage.number}", kind=HookKind.END, submission=hook)],
    )


async def _register_tasks(stage: Stage) -> Any:
    limit = {"kind": "quota", "name": "tenant", "is_keyed": True, "argument": "tenant"}
    task = TaskDeclaration(task=f"task-of-{stage.number}", limits=[limit])
    answer = await stage.client.tasks.register("default", [1], [task])
    return [word in ("registered", "unchanged") for word in answer.values()]


async def _scheduled(stage: Stage) -> None:
    await _nothing(stage)
    await _declare(stage)


async def _schedule_due(stage: Stage) -> None:
    """Its times are moved, not the clock: the leases of others stay."""
    await _scheduled(stage)
    app = f"app-{stage.number}"
    row = await stage.db.fetchrow("select anchor_at, next_at from ff.schedule where app = $1", app)
    assert row is not None
    await stage.db.execute(
        "update ff.schedule set anchor_at = $2, next_at = $3, misfire = 'all' where app = $1",
        app,
        row["anchor_at"] - FIVE_HOURS,
        row["next_at"] - FIVE_HOURS,
    )
    due, now, _ = await stage.client.schedules.due(f"app-{stage.number}")
    stage.state["due"] = due[0], now


async def _fire(stage: Stage) -> Any:
    due, now = stage.state["due"]
    answer = await stage.client.schedules.fire(f"app-{stage.number}", due, now)
    return answer.outcome, answer.count


async def _run_schedule(stage: Stage) -> Any:
    id = await stage.client.schedules.run(f"tick-{stage.number}", actor="ann")
    return await stage.client.executions.state(id)


async def _pause_schedule(stage: Stage) -> Any:
    info = await stage.client.schedules.pause(f"tick-{stage.number}", actor="ann")
    return info.state, info.changed_by


async def _paused_schedule(stage: Stage) -> None:
    await _scheduled(stage)
    await _pause_schedule(stage)


async def _resume_schedule(stage: Stage) -> Any:
    info = await stage.client.schedules.resume(f"tick-{stage.number}", actor="bob")
    return info.state, info.changed_by


async def _orphaned(stage: Stage) -> None:
    await _scheduled(stage)
    await stage.client.schedules.declare(f"app-{stage.number}", [1], [])


async def _forget_schedule(stage: Stage) -> Any:
    return await stage.client.schedules.forget(f"tick-{stage.number}")


def _retrying(retries: int) -> str | None:
    return policy_json(retry=Retry(max_retries=retries, backoff=Fixed(LONG)))


async def _flow(stage: Stage, edges: Sequence[tuple[int, int]] = ()) -> None:
    """A flow of three members."""
    stage.state["flow"] = mint_flow()
    stage.state["members"] = [mint() for _ in range(3)]
    await stage.client.flows.submit(
        Graph(
            id=stage.state["flow"],
            kind="test",
            nodes=[
                Node(f"n{number}", Submission(id=id, route=stage.route, payload=b"null"))
                for number, id in enumerate(stage.state["members"])
            ],
            edges=[Edge(*edge) for edge in edges],
        )
    )


async def _submit_flow(stage: Stage) -> Any:
    await _flow(stage, [(0, 2), (1, 2)])
    return await stage.client.flows.summary(stage.state["flow"]) is not None


async def _create_flow(stage: Stage) -> Any:
    id = mint_flow()
    answer = await stage.client.flows.create("test", id=id, tags={"team.name": "x"})
    assert answer.id == id


async def _built(stage: Stage) -> None:
    """A flow without edges, and an execution that is not in it."""
    stage.state["flow"] = (await stage.client.flows.create("test")).id
    stage.state["members"] = [mint() for _ in range(3)]
    for id in stage.state["members"]:
        submission = Submission(id=id, route=stage.route, payload=b"null")
        await stage.client.executions.submit(submission)
    for id in stage.state["members"][:2]:
        await stage.client.flows.add_execution(stage.state["flow"], id)


async def _add_member(stage: Stage) -> Any:
    answer = await stage.client.flows.add_execution(
        stage.state["flow"], stage.state["members"][2], name="third"
    )
    return answer.node_count, answer.graph_revision


async def _set_policy(stage: Stage) -> Any:
    await stage.client.flows.set_edge_group_policy(
        stage.state["flow"], stage.state["members"][1], EdgeGroupPolicy.quorum(2)
    )


async def _stage_edge(stage: Stage) -> Any:
    first, second, _ = stage.state["members"]
    edge = await stage.client.flows.stage_dependency_edge(
        stage.state["flow"], first, second, expected_graph_revision=2
    )
    stage.state["edge"] = edge.edge_id
    return edge.graph_revision


async def _staged(stage: Stage) -> None:
    await _built(stage)
    await _stage_edge(stage)


async def _apply_edge(stage: Stage) -> Any:
    first, second, _ = stage.state["members"]
    answer = await stage.client.flows.apply_dependency_to_child(
        stage.state["flow"], stage.state["edge"], first, second
    )
    return answer.unsatisfied, answer.downstream_state


async def _flow_tags(stage: Stage) -> Any:
    return await stage.client.flows.set_tags(stage.state["flow"], {"team.name": "x"})


async def _unneeded(stage: Stage) -> None:
    """One of two was enough; the other was locked when it was to be cancelled."""
    await _flow(stage, [(0, 2), (1, 2)])
    await stage.db.execute(
        "update ff.edge_group set policy = 'any_of', on_satisfied = 'cancel_remaining' "
        "where flow_id = $1",
        stage.state["flow"].uuid,
    )
    held = {one.id: one for one in await stage.claim(2)}
    winner, stage.state["other"] = (held[id] for id in stage.state["members"][:2])
    other = await stage.db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where partition_key = 0 and execution_id = $1 "
            "for no key update",
            stage.state["other"].execution_id,
        )
        await stage.db.fetch(
            "select * from ff.complete_executions(0::smallint, null, array[$1::uuid], "
            "array[$2::uuid], array[$3::bigint], array[$4::uuid], null)",
            winner.execution_id,
            winner.lease_id,
            winner.epoch,
            winner.attempt_id,
        )


async def _cancel_siblings(stage: Stage) -> Any:
    return (await stage.client.executions.cancel_siblings())[0]


async def _unneeded_and_over(stage: Stage) -> None:
    await _unneeded(stage)
    await stage.client.executions.complete(stage.state["other"])


async def _reconcile_siblings(stage: Stage) -> Any:
    return (await stage.client.executions.reconcile_siblings())[0]


async def _blocked_in_vain(stage: Stage) -> None:
    """By hand: nothing of ours leaves a member like this."""
    await _flow(stage, [(0, 1)])
    held = {one.id: one for one in await stage.claim(2)}
    await stage.client.executions.complete(held[stage.state["members"][0]])
    await stage.db.execute(
        "update ff.execution set eligibility = 'blocked_by_dependencies', "
        "blocking_reason = 'waiting_for_children', cause = 'apply_dependency' "
        "where execution_id = $1",
        stage.state["members"][1].uuid,
    )


async def _promote_blocked(stage: Stage) -> Any:
    id = stage.state["members"][1]
    answer = await stage.client.executions.promote_blocked_to_eligible(id)
    return answer.outcome, answer.public_state


async def _cancel_header(stage: Stage) -> Any:
    answer = await stage.client.flows.cancel_header(
        stage.state["flow"], reason="cut", actor="ann", grace=NEVER
    )
    assert answer.members == sorted(stage.state["members"], key=lambda id: id.uuid)
    return answer.outcome, answer.cancel_policy, answer.reason, answer.member_count


async def _cancelled_flow(stage: Stage) -> None:
    await _flow(stage)
    await stage.client.flows.cancel_header(stage.state["flow"], grace=NEVER)


async def _cancel_members(stage: Stage) -> Any:
    step = await stage.client.flows.cancel_members(stage.state["flow"])
    # one that finds the first at work is told so
    for _ in range(500):
        if not step.remaining:
            break
        await asyncio.sleep(0.01)
        step = await stage.client.flows.cancel_members(stage.state["flow"])
    assert [await stage.client.executions.state(id) for id in stage.state["members"]] == (
        ["cancelled"] * 3
    )
    return step.handled


async def _cancelled_member(stage: Stage) -> None:
    await _cancelled_flow(stage)
    await stage.client.executions.cancel(stage.state["members"][0])


async def _ack_member(stage: Stage) -> Any:
    return await stage.client.flows.ack_cancel_member(
        stage.state["flow"], stage.state["members"][0]
    )


async def _cancelled_long_ago(stage: Stage) -> None:
    await _cancelled_flow(stage)
    await stage.db.execute(
        "update ff.cancel_backlog set due_at = $2 where flow_id = $1",
        stage.state["flow"].uuid,
        await stage.now(),
    )


async def _cancel_backlog(stage: Stage) -> Any:
    return (await stage.client.flows.cancel_backlog())[0]


async def _skipped_members(stage: Stage) -> None:
    await _flow(stage, [(0, 1), (1, 2)])
    (claimed,) = await stage.claim(1)
    await stage.client.executions.fail(claimed, Failure(FailureClass.PERMANENT, "cut"))


async def _replay_member(stage: Stage) -> Any:
    first = stage.state["members"][0]
    answer = await stage.client.executions.replay(first)
    states = [await stage.client.executions.state(id) for id in stage.state["members"]]
    return answer.public_state, answer.version, states


async def _claimed_one(stage: Stage) -> None:
    await stage.claimed()


async def _start(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    await stage.client.executions.start(claimed, alone=True)
    return await stage.db.fetchval(
        "select lease_start::text from ff.execution where execution_id = $1", claimed.execution_id
    )


def _name(stage: Stage) -> str:
    return f"limit-{stage.number}"


async def _lease(stage: Stage) -> Any:
    holder = stage.state.setdefault("holder", uuid4())
    cursor = stage.state.setdefault("cursor", await stage.client.events.open())
    lease = await stage.client.subscriptions.lease(
        _name(stage), holder, holder_name="tests", ttl=timedelta(hours=1), filter=EventFilter(),
        cursor=cursor,
    )  # fmt: skip
    stage.state["epoch"] = lease.epoch
    return lease.outcome, lease.epoch


async def _leased(stage: Stage) -> None:
    await _lease(stage)


async def _ack(stage: Stage) -> Any:
    return await stage.client.subscriptions.ack(
        _name(stage), stage.state["holder"], stage.state["epoch"], ttl=timedelta(hours=1),
        ack_no=1, cursor=stage.state["cursor"], count=7,
    )  # fmt: skip


async def _release_lease(stage: Stage) -> None:
    await stage.client.subscriptions.release(
        _name(stage), stage.state["holder"], stage.state["epoch"]
    )


async def _reset(stage: Stage) -> None:
    await stage.client.subscriptions.reset(_name(stage))


async def _remove(stage: Stage) -> None:
    await stage.client.subscriptions.remove(_name(stage))


async def _add_webhook(stage: Stage) -> Any:
    secret = await stage.client.webhooks.add(_name(stage), "https://hooks.example.com/")
    return len(secret)


async def _webhook(stage: Stage) -> None:
    await _add_webhook(stage)


async def _lease_webhook(stage: Stage) -> Any:
    holder = stage.state.setdefault("holder", uuid4())
    lease = await stage.client.webhooks.lease(
        _name(stage), holder, holder_name="tests", ttl=timedelta(hours=1)
    )
    stage.state["epoch"] = lease.epoch
    return lease.outcome, lease.epoch


async def _leased_webhook(stage: Stage) -> None:
    await _webhook(stage)
    await _lease_webhook(stage)


async def _fail_webhook(stage: Stage) -> Any:
    return await stage.client.webhooks.fail(
        _name(stage), stage.state["holder"], stage.state["epoch"], ack_no=1, answer="HTTP 500"
    )


async def _last_failure(stage: Stage) -> None:
    await _leased_webhook(stage)
    await stage.db.execute(
        "update ff.subscription set failure_count = 23 where name = $1", _name(stage)
    )


async def _disabled_webhook(stage: Stage) -> None:
    await _last_failure(stage)
    await _fail_webhook(stage)


async def _enable_webhook(stage: Stage) -> Any:
    await stage.client.webhooks.enable(_name(stage))
    return (await stage.client.webhooks.get(_name(stage))).state


async def _create_quota(stage: Stage) -> Any:
    await stage.client.quotas.create(Limit(_name(stage), concurrency=2, rate="10/min"))
    info = await stage.client.quotas.get(_name(stage))
    return info.concurrency, info.rate


async def _quota(stage: Stage) -> None:
    await _create_quota(stage)


async def _set_quota(stage: Stage) -> Any:
    return (await stage.client.quotas.set(_name(stage), concurrency=5)).concurrency


async def _changed_quota(stage: Stage) -> None:
    await _quota(stage)
    await _set_quota(stage)


async def _lift_quota(stage: Stage) -> Any:
    return (await stage.client.quotas.lift(_name(stage))).concurrency


async def _delete_quota(stage: Stage) -> Any:
    await stage.client.quotas.delete(_name(stage))
    return await stage.db.fetchval("select count(*) from ff.quota where quota = $1", _name(stage))


async def _register_gates(stage: Stage) -> Any:
    await Gates(stage.client.database).declare("default", [Limit(_name(stage), concurrency=2)])
    return (await stage.client.quotas.get(_name(stage))).concurrency


async def _check_admission(stage: Stage) -> Any:
    answer, stage.state["ticket"] = await stage.client.quotas.check_admission(_name(stage))
    return answer.is_admitted


async def _ticket(stage: Stage) -> None:
    await _quota(stage)
    assert await _check_admission(stage)


async def _release_admission(stage: Stage) -> Any:
    await stage.client.quotas.release_admission(_name(stage), stage.state["ticket"], is_unused=True)


async def _ticket_expired(stage: Stage) -> None:
    await _ticket(stage)
    await _end_tickets(stage)
    # What other scenarios held is out of the way.
    while (await stage.client.quotas.sweep())[0]:
        pass
    await stage.client.quotas.check_admission(_name(stage))
    await _end_tickets(stage)


async def _end_tickets(stage: Stage) -> None:
    # Not by the clock: leases of other scenarios would end, too.
    await stage.db.execute(
        "update ff.gate_ticket set expires_at = $1", await stage.now() - timedelta(seconds=1)
    )


async def _sweep_gates(stage: Stage) -> Any:
    return (await stage.client.quotas.sweep())[0]


async def _balance_gates(stage: Stage) -> Any:
    return (await stage.client.quotas.balance())[0]


async def _create_budget(stage: Stage) -> Any:
    await stage.client.budgets.create(Budget(_name(stage), tokens=100))
    return (await stage.client.budgets.get(_name(stage))).hard_limits


async def _budget(stage: Stage) -> None:
    await _create_budget(stage)


async def _raise_budget(stage: Stage) -> Any:
    await stage.client.budgets.raise_limits(_name(stage), tokens=500)
    return (await stage.client.budgets.get(_name(stage))).hard_limits


async def _raised_budget(stage: Stage) -> None:
    await _budget(stage)
    await _raise_budget(stage)


async def _lift_budget(stage: Stage) -> Any:
    await stage.client.budgets.lift(_name(stage))
    return (await stage.client.budgets.get(_name(stage))).hard_limits


async def _used(stage: Stage) -> Any:
    return (await stage.client.budgets.get(_name(stage))).usage


async def _report_outside(stage: Stage) -> Any:
    await stage.client.budgets.report_usage_admin(_name(stage), tokens=7)
    return await _used(stage)


async def _spent_budget(stage: Stage) -> None:
    await _budget(stage)
    await _report_outside(stage)


async def _reset_budget(stage: Stage) -> Any:
    await stage.client.budgets.reset(_name(stage))
    return await _used(stage)


async def _budget_due(stage: Stage) -> None:
    # Budgets and reports of other scenarios are out of the way.
    await stage.db.execute(
        "update ff.budget set next_reset_at = $1 where next_reset_at is not null",
        await stage.now() + NEVER,
    )
    budget = Budget(_name(stage), tokens=100, period=timedelta(minutes=1))
    await stage.client.budgets.create(budget)
    await _report_outside(stage)
    await stage.db.execute(
        "update ff.budget set next_reset_at = $2 where budget = $1",
        _name(stage),
        await stage.now(),
    )
    await stage.db.execute("delete from ff.budget_report where expires_at <= $1", await stage.now())


async def _reset_due(stage: Stage) -> Any:
    return (await stage.client.budgets.reset_due())[0]


async def _spend(stage: Stage) -> Any:
    id = stage.state.setdefault("spender", mint())
    await stage.client.budgets.record_spend(_name(stage), id, tokens=7)
    return await _used(stage)


async def _spent(stage: Stage) -> None:
    await _budget(stage)
    await _spend(stage)


async def _release_spend(stage: Stage) -> Any:
    await stage.client.budgets.release(_name(stage), stage.state["spender"])
    return await _used(stage)


async def _claimed_with_budget(stage: Stage) -> None:
    await stage.claimed(budgets=(Gate("default", Budget(_name(stage), tokens=100)),))


async def _report_usage(stage: Stage) -> Any:
    (claimed,) = stage.state["claimed"]
    await stage.client.budgets.report_usage(claimed, {"tokens": 7})
    return await _used(stage)


SCENARIOS = (
    Scenario("submit", "submit_executions", _nothing, _submit, ("execution", "event")),
    Scenario(
        "submit with a key",
        "submit_executions",
        _nothing,
        _submit_keyed,
        ("idempotency_key", "execution", "event"),
    ),
    Scenario("submit many", "submit_executions", _nothing, _submit_many, ("event",)),
    Scenario("submit as JSON", "submit_json", _nothing, _submit_json, ("execution", "event")),
    Scenario(
        "claim all",
        "claim_executions",
        lambda stage: stage.submitted(3),
        _claim,
        ("event", "claim_slot"),
        may_give_way=True,
    ),
    Scenario(
        "claim some",
        "claim_executions",
        lambda stage: stage.submitted(7),
        _claim,
        ("event", "claim_slot"),
    ),
    Scenario("start", "start_executions", _claimed_one, _start, ("execution",)),
    Scenario("claim interrupted", "claim_executions", _interrupted, _claim, ("claim_slot",)),
    Scenario(
        "complete",
        "complete_executions",
        lambda stage: stage.claimed(3),
        _complete,
        ("execution", "event"),
    ),
    Scenario(
        "fail and retry",
        "fail_executions",
        lambda stage: stage.claimed(policy=_retrying(2)),
        _fail,
        ("execution", "event"),
    ),
    Scenario(
        "fail for good",
        "fail_executions",
        lambda stage: stage.claimed(policy=_retrying(0)),
        _fail,
        ("execution", "event"),
    ),
    Scenario(
        "release",
        "release_leases",
        lambda stage: stage.claimed(3),
        _release,
        ("execution", "event"),
    ),
    Scenario("renew", "renew_leases", lambda stage: stage.claimed(3), _renew, ("execution",)),
    Scenario("expire", "expire_leases", _expired, _expire, ("execution", "event"), is_sweep=True),
    Scenario("promote", "promote_delayed", _due, _promote, ("execution",), is_sweep=True),
    Scenario(
        "cancel",
        "cancel_execution",
        lambda stage: stage.claimed(),
        _on_one("cancel", reason="enough", actor="ann"),
        ("execution", "event"),
    ),
    Scenario(
        "cancel what one holds",
        "cancel_execution",
        lambda stage: stage.claimed(),
        _cancel_held,
        ("execution", "event"),
    ),
    Scenario(
        "revoke",
        "revoke_lease",
        lambda stage: stage.claimed(),
        _on_one("revoke", noun="leases", actor="ann"),
        ("execution", "event"),
    ),
    Scenario(
        "change the priority",
        "change_priority",
        lambda stage: stage.submitted(),
        _on_one("change_priority", 7, actor="ann"),
        ("execution", "event"),
    ),
    Scenario("replay", "replay_execution", _completed, _on_one("replay"), ("execution", "event")),
    Scenario("retry", "retry_execution", _completed, _on_one("retry"), ("execution", "event")),
    Scenario(
        "retry what is delayed",
        "retry_execution",
        lambda stage: stage.submitted(delay=LONG),
        _on_one("retry"),
        ("event",),
    ),
    Scenario(
        "block",
        "block_execution_for_admission",
        lambda stage: stage.submitted(),
        _on_one("block_for_admission", "paused_by_operator", actor="ann"),
        ("execution", "event"),
    ),
    Scenario("unblock", "unblock_execution", _blocked, _on_one("unblock", actor="ann"), ("event",)),
    Scenario(
        "unblock in silence", "unblock_execution", _blocked, _on_one("unblock"), ("execution",)
    ),
    Scenario(
        "report progress",
        "report_progress",
        lambda stage: stage.claimed(),
        _by_holder("report_progress", 40, "half"),
        ("execution",),
    ),
    Scenario(
        "delay",
        "delay_execution",
        lambda stage: stage.claimed(),
        _by_holder("delay", LONG),
        ("execution", "event"),
    ),
    Scenario(
        "leave to newer code",
        "delay_execution",
        lambda stage: stage.claimed(),
        _by_holder("wait_for_newer_code", "ff.patch x"),
        ("execution", "event"),
    ),
    Scenario(
        "wait for children",
        "wait_children",
        lambda stage: stage.claimed(),
        _by_holder("wait_children"),
        ("execution", "event"),
    ),
    Scenario(
        "append frames",
        "append_frames",
        lambda stage: stage.claimed(),
        _stream,
        ("stream", "stream_chunk"),
    ),
    Scenario(
        "expire streams",
        "expire_streams",
        _stream_expired,
        _expire_streams,
        ("stream_chunk",),
        is_sweep=True,
    ),
    Scenario("ask", "ask_waits", _with_signal, _ask, ("step",)),
    Scenario("suspend", "suspend_execution", _with_open_wait, _suspend, ("execution", "event")),
    Scenario("deliver", "deliver_signals", _suspended, _deliver, ("signal", "execution", "event")),
    Scenario(
        "notice", "notice_signals", _signal_stored, _notice, ("execution", "event"), is_sweep=True
    ),
    Scenario(
        "time out a suspension",
        "expire_suspensions",
        _suspension_due,
        _time_out,
        ("execution", "event"),
        is_sweep=True,
    ),
    Scenario(
        "resume",
        "resume_execution",
        _suspended,
        _on_one("resume", noun="signals", actor="ann"),
        ("execution", "event"),
    ),
    Scenario(
        "create a waitpoint",
        "create_waitpoint",
        lambda stage: stage.claimed(),
        _waitpoint,
        ("waitpoint",),
    ),
    Scenario(
        "register types of signals",
        "register_signal_schemas",
        lambda stage: stage.claimed(),
        _register_types,
        ("signal_schema",),
    ),
    Scenario(
        "create an approval",
        "create_approval",
        lambda stage: stage.claimed(),
        _approval,
        ("approval", "waitpoint"),
    ),
    Scenario(
        "answer an approval",
        "deliver_approval_signal",
        _with_approval,
        _answer_approval,
        ("signal",),
    ),
    Scenario(
        "close a waitpoint", "close_waitpoint", _with_waitpoint, _close_waitpoint, ("waitpoint",)
    ),
    Scenario(
        "expire waitpoints",
        "expire_waitpoints",
        _waitpoint_due,
        _expire_waitpoints,
        ("waitpoint",),
        is_sweep=True,
    ),
    Scenario("record steps", "record_steps", lambda stage: stage.claimed(), _record, ("step",)),
    Scenario(
        "submit a child",
        "submit_executions",
        lambda stage: stage.claimed(),
        _submit_child,
        ("execution", "event", "execution_body"),
    ),
    Scenario(
        "wait for runs",
        "wait_for_runs",
        _with_children,
        _wait_for_runs,
        ("run_wait", "execution", "event"),
    ),
    Scenario(
        "cancel a parent",
        "cancel_execution",
        _with_children,
        _cancel_parent,
        ("execution", "event"),
    ),
    Scenario(
        "replay afresh",
        "replay_execution",
        _ended_with_steps,
        _replay_fresh,
        ("execution", "event"),
    ),
    Scenario("resolve", "resolve_wakes", _owing, _resolve, ("run_wait",), is_sweep=True),
    Scenario(
        "hold",
        "hold_execution",
        lambda stage: stage.claimed(),
        _by_holder("hold", "a step is missing", step="pay"),
        ("execution", "event"),
    ),
    Scenario(
        "continue",
        "continue_execution",
        lambda stage: stage.claimed(),
        _by_holder("continue_as", b"[2]"),
        ("execution", "execution_body", "event"),
    ),
    Scenario(
        "expire executions",
        "expire_executions",
        _late,
        _expire_executions,
        ("execution", "event"),
        is_sweep=True,
    ),
    Scenario(
        "issue a claim grant",
        "issue_claim_grant",
        _waits_alone,
        _issue("issue_claim_grant"),
        ("grant",),
    ),
    Scenario(
        "claim with a grant",
        "claim_execution",
        _granted,
        _use("claim_execution"),
        ("execution", "event"),
    ),
    Scenario(
        "resume with a grant",
        "claim_resumed_execution",
        _granted_to_resume,
        _use("claim_from_resume_grant"),
        ("execution", "event"),
    ),
    Scenario(
        "issue a reclaim grant",
        "issue_reclaim_grant",
        _lost_alone,
        _issue("issue_reclaim_grant"),
        ("execution", "event", "grant"),
    ),
    Scenario(
        "reclaim with a grant",
        "reclaim_execution",
        _granted_to_reclaim,
        _use("reclaim_execution"),
        ("execution", "event"),
    ),
    Scenario(
        "grant and claim",
        "issue_grant_and_claim",
        _waits_alone,
        _grant_and_claim,
        ("execution", "event"),
    ),
    Scenario("reap", "reap_grants", _granted_and_over, _reap, ("grant",), is_sweep=True),
    Scenario(
        "register a worker",
        "register_worker",
        lambda stage: asyncio.sleep(0),
        _register_worker,
        ("worker", "worker_event"),
    ),
    Scenario("beat", "heartbeat_workers", _registered, _beat, ("worker",)),
    Scenario("drain", "drain_worker", _registered, _drain_worker, ("worker", "worker_event")),
    Scenario("mark dead", "mark_worker_dead", _registered, _mark_dead, ("worker", "worker_event")),
    Scenario("sweep", "sweep_workers", _silent, _sweep, ("worker", "worker_event"), is_sweep=True),
    Scenario(
        "expire the leases of a worker",
        "expire_worker_leases",
        lambda stage: stage.claimed(3),
        _expire_of_worker,
        ("execution", "event"),
    ),
    Scenario("pause a lane", "set_lane", _nothing, _pause, ("lane",)),
    Scenario(
        "limit a lane",
        "set_lane_options",
        _another_limited_lane,
        _limit_lane,
        ("lane", "quota", "quota_change", "gate"),
    ),
    Scenario(
        "declare schedules",
        "declare_schedules",
        _nothing,
        _declare,
        ("schedule", "schedule_app"),
    ),
    Scenario("declare hooks", "declare_hooks", _nothing, _declare_hooks, ("hook",)),
    Scenario("register tasks", "register_tasks", _nothing, _register_tasks, ("task",)),
    Scenario("lease a subscription", "lease_subscription", _nothing, _lease, ("subscription",)),
    Scenario("ack", "ack_subscription", _leased, _ack, ("subscription",)),
    Scenario("let go", "release_subscription", _leased, _release_lease, ("subscription",)),
    Scenario("reset a subscription", "reset_subscription", _leased, _reset, ("subscription",)),
    Scenario("remove one", "remove_subscription", _leased, _remove, ("subscription",)),
    Scenario("add a webhook", "add_webhook", _nothing, _add_webhook, ("subscription",)),
    Scenario("lease a webhook", "lease_webhook", _webhook, _lease_webhook, ("subscription",)),
    Scenario("fail", "fail_webhook", _leased_webhook, _fail_webhook, ("subscription",)),
    Scenario(
        "disable a webhook", "fail_webhook", _last_failure, _fail_webhook, ("subscription", "event")
    ),
    Scenario(
        "enable a webhook", "enable_webhook", _disabled_webhook, _enable_webhook, ("subscription",)
    ),
    Scenario("create a quota", "create_quota", _nothing, _create_quota, ("quota",)),
    Scenario("set a quota", "set_quota", _quota, _set_quota, ("quota_change",)),
    Scenario("lift a quota", "lift_quota", _changed_quota, _lift_quota, ("quota_change",)),
    Scenario(
        "delete a quota", "delete_quota", _changed_quota, _delete_quota, ("quota", "quota_change")
    ),
    Scenario("register gates", "register_gates", _nothing, _register_gates, ("quota", "gate")),
    Scenario("take a slot", "check_admission", _quota, _check_admission, ("gate", "gate_ticket")),
    Scenario(
        "give a slot back", "release_admission", _ticket, _release_admission, ("gate_ticket",)
    ),
    Scenario(
        "sweep gates", "sweep_gates", _ticket_expired, _sweep_gates, ("gate_ticket",), is_sweep=True
    ),
    # With one partition there is nothing to move.
    Scenario("balance gates", "balance_gates", _nothing, _balance_gates, (), is_sweep=True),
    Scenario(
        "create a budget", "create_budget", _nothing, _create_budget, ("budget", "budget_dimension")
    ),
    Scenario("raise a budget", "raise_budget", _budget, _raise_budget, ("budget_dimension",)),
    Scenario("lift a budget", "lift_budget", _raised_budget, _lift_budget, ("budget_dimension",)),
    Scenario("reset a budget", "reset_budget", _spent_budget, _reset_budget, ("budget_dimension",)),
    Scenario(
        "reset due budgets",
        "reset_due_budgets",
        _budget_due,
        _reset_due,
        ("budget", "budget_dimension"),
        is_sweep=True,
    ),
    Scenario(
        "report usage outside",
        "report_usage_admin",
        _budget,
        _report_outside,
        ("budget_dimension", "budget_report"),
    ),
    Scenario("spend", "record_spend", _budget, _spend, ("budget_ledger", "budget_report")),
    Scenario("take a spend back", "release_budget", _spent, _release_spend, ("budget_ledger",)),
    Scenario(
        "report usage",
        "report_usage",
        _claimed_with_budget,
        _report_usage,
        ("budget_dimension", "budget_report"),
    ),
    Scenario("fire", "fire_schedule", _schedule_due, _fire, ("schedule", "execution", "event")),
    Scenario("run a schedule", "run_schedule", _scheduled, _run_schedule, ("execution", "event")),
    Scenario("pause a schedule", "set_schedule", _scheduled, _pause_schedule, ("schedule",)),
    Scenario("resume one", "set_schedule", _paused_schedule, _resume_schedule, ("schedule",)),
    Scenario("forget one", "forget_schedule", _orphaned, _forget_schedule, ("schedule",)),
    Scenario(
        "submit a flow",
        "submit_flow",
        _nothing,
        _submit_flow,
        ("flow", "execution", "event", "execution_body", "edge", "edge_group"),
    ),
    Scenario("create a flow", "create_flow", _nothing, _create_flow, ("flow",)),
    Scenario(
        "add to a flow",
        "add_execution_to_flow",
        _built,
        _add_member,
        ("flow", "execution", "execution_body"),
    ),
    Scenario("set a policy", "set_edge_group_policy", _built, _set_policy, ("flow", "edge_group")),
    Scenario(
        "stage an edge",
        "stage_dependency_edge",
        _built,
        _stage_edge,
        ("flow", "edge", "edge_group"),
    ),
    Scenario(
        "apply an edge", "apply_dependency_to_child", _staged, _apply_edge, ("edge", "execution")
    ),
    Scenario("tag a flow", "set_flow_tags", _built, _flow_tags, ("flow",)),
    Scenario(
        "cancel a flow",
        "cancel_flow_header",
        _flow,
        _cancel_header,
        ("flow", "event", "cancel_backlog_member", "cancel_backlog", "execution"),
    ),
    Scenario(
        "cancel members",
        "cancel_members",
        _cancelled_flow,
        _cancel_members,
        ("execution", "event", "cancel_backlog_member", "cancel_backlog"),
        is_sweep=True,
    ),
    Scenario(
        "ack a member",
        "ack_cancel_member",
        _cancelled_member,
        _ack_member,
        ("cancel_backlog_member",),
    ),
    Scenario(
        "work a backlog off",
        "cancel_backlog",
        _cancelled_long_ago,
        _cancel_backlog,
        ("execution", "event", "cancel_backlog_member", "cancel_backlog"),
        is_sweep=True,
    ),
    Scenario(
        "replay a member",
        "replay_execution",
        _skipped_members,
        _replay_member,
        ("edge", "edge_group", "execution", "event"),
    ),
    Scenario(
        "cancel siblings",
        "cancel_siblings",
        _unneeded,
        _cancel_siblings,
        ("execution", "event", "edge_group"),
        is_sweep=True,
    ),
    Scenario(
        "reconcile siblings",
        "reconcile_siblings",
        _unneeded_and_over,
        _reconcile_siblings,
        ("edge_group",),
        is_sweep=True,
    ),
    Scenario(
        "promote what is blocked",
        "promote_blocked_to_eligible",
        _blocked_in_vain,
        _promote_blocked,
        ("execution",),
    ),
    Scenario("trim", "trim_retention", _ended, _trim, ("attempt", "event_trim"), is_sweep=True),
    Scenario(
        "trim what is over",
        "trim_executions",
        _ended,
        _trim_executions,
        ("attempt", "event_trim"),
        is_sweep=True,
    ),
    Scenario(
        "unblock those with a capable worker",
        "unblock_executions",
        _blocked_by_route,
        _unblock_all,
        ("execution",),
        is_sweep=True,
    ),
    Scenario("trim events", "trim_events", _trimmed, _trim_events, ("event_trim",), is_sweep=True),
    Scenario(
        "roll up events",
        "roll_up_events",
        _uncounted,
        _roll_up,
        ("minute",),
        is_sweep=True,
    ),
    Scenario("trim keys", "trim_keys", _over, _trim_keys, ("idempotency_key",), is_sweep=True),
    Scenario(
        "set tags",
        "set_tags",
        lambda stage: stage.claimed(3),
        _tags,
        ("execution", "execution_body"),
    ),
    Scenario(
        "register a route",
        "register_routes",
        lambda stage: asyncio.sleep(0),
        _register,
        ("lane", "route"),
    ),
)


def test_every_place_has_its_gate() -> None:
    gates = set(re.findall(r" on ff\.(\w+)\n", GATES))
    assert {place for scenario in SCENARIOS for place in scenario.places} <= gates
    names = [scenario.name for scenario in SCENARIOS]
    assert sorted(names) == sorted(set(names))


async def make_known(client: FlowFabric) -> UUID:
    """Make what `calls_that_read` asks for; return the execution."""
    submission = Submission(
        id=mint(), route=Route("default", "default", "tests.work"), payload=b"null"
    )
    await client.quotas.create(Limit("known", concurrency=1))
    await client.webhooks.add("known", "https://hooks.example.com/")
    await client.budgets.create(Budget("known", tokens=1))
    return (await client.executions.submit(submission)).id.uuid


def calls_that_read(known: UUID) -> dict[str, str]:
    """A call of every function that only reads. `known` is an execution; a quota, a webhook and a
    budget named `known` exist."""
    return {
        "now": "ff.now()",
        "read_results": "ff.read_results(0::smallint, null, array[gen_random_uuid()])",
        "open_cursor": "ff.open_cursor(0::smallint)",
        "read_events": "ff.read_events(0::smallint, null, ff.open_cursor(0::smallint))",
        "list_workers": "ff.list_workers()",
        "list_versions": "ff.list_versions(0::smallint)",
        "list_unserved_routes": "ff.list_unserved_routes(0::smallint, 'default', array['w'])",
        "read_traffic": "ff.read_traffic(0::smallint)",
        "read_minutes": "ff.read_minutes(0::smallint, 'default', now() - interval '1 hour')",
        "read_key": "ff.read_key(0::smallint, 'default', 'k')",
        "list_executions": "ff.list_executions(0::smallint, null)",
        "count_executions": "ff.count_executions(0::smallint, null)",
        "find_ids": f"ff.find_ids(0::smallint, null, '{known}')",
        "list_execution_ids": "ff.list_execution_ids(0::smallint, null)",
        "list_expired_leases": "ff.list_expired_leases(0::smallint, null)",
        "list_steps": f"ff.list_steps(0::smallint, null, array['{known}'::uuid])",
        "list_signals": f"ff.list_signals(0::smallint, null, '{known}')",
        "read_streams": (
            f"ff.read_streams(0::smallint, null, array['{known}'::uuid], array[0::bigint],"
            " array[0])"
        ),
        "read_summary": f"ff.read_summary(0::smallint, null, '{known}')",
        "read_signals": "ff.read_signals(0::smallint, null)",
        "list_approvals": "ff.list_approvals(0::smallint, null)",
        "list_suspended": "ff.list_suspended(0::smallint, null)",
        "list_pending_waitpoints": f"ff.list_pending_waitpoints(0::smallint, null, '{known}')",
        "read_waitpoint": f"ff.read_waitpoint(0::smallint, null, '{known}', 'ffw_x')",
        "read_waitpoint_token": (
            f"ff.read_waitpoint_token(0::smallint, null, '{known}', gen_random_uuid())"
        ),
        "count_waitpoints": "ff.count_waitpoints(0::smallint)",
        "list_hmac_keys": "ff.list_hmac_keys()",
        "explain_execution": f"ff.explain_execution(0::smallint, null, '{known}')",
        "server_time": "ff.server_time()",
        "due_schedules": "ff.due_schedules('default', 'shop')",
        "describe_flow": f"ff.describe_flow(0::smallint, null, '{known}')",
        "summarise_flow": f"ff.summarise_flow(0::smallint, null, '{known}')",
        "list_flows": "ff.list_flows(0::smallint, null)",
        "list_edges": f"ff.list_edges(0::smallint, null, '{known}')",
        "describe_edge": f"ff.describe_edge(0::smallint, null, '{known}', '{known}')",
        "list_flow_members": f"ff.list_flow_members(0::smallint, null, '{known}')",
        "evaluate_flow_eligibility": f"ff.evaluate_flow_eligibility(0::smallint, null, '{known}')",
        "read_inputs": f"ff.read_inputs(0::smallint, null, array['{known}'::uuid])",
        "describe_execution": f"ff.describe_execution(0::smallint, null, '{known}')",
        "read_execution_info": f"ff.read_execution_info(0::smallint, null, '{known}')",
        "list_attempts": f"ff.list_attempts(0::smallint, null, '{known}')",
        "list_events": f"ff.list_events(0::smallint, null, '{known}')",
        "list_failures": "ff.list_failures(0::smallint, null)",
        "list_tasks": "ff.list_tasks(null)",
        "describe_task": "ff.describe_task(null, 'tests.work')",
        "list_lanes": "ff.list_lanes(null)",
        "list_quotas": "ff.list_quotas(null)",
        "list_gates": "ff.list_gates(0::smallint, 'default', 'known')",
        "list_budgets": "ff.list_budgets(0::smallint, null)",
        "get_budget_status": "ff.get_budget_status(0::smallint, 'default', 'known')",
        "find_due": (
            "ff.find_due('{timer,wake,flow_cancel,sibling,route,gate,signal,suspension,waitpoint,"
            "stream,grant,event,minute}')"
        ),
        "find_claim": f"ff.find_claim(null, 'w-1', '{known}')",
        "find_work": "ff.find_work(null, null, null, null)",
        "list_schedules": "ff.list_schedules(null)",
        "list_subscriptions": "ff.list_subscriptions(null)",
        "read_lags": "ff.read_lags(0::smallint, null)",
        "list_api_tokens": "ff.list_api_tokens(null)",
        "list_audit": "ff.list_audit(null)",
        "list_webhooks": "ff.list_webhooks(null)",
        "due_webhooks": "ff.due_webhooks(null)",
        "sign_webhook": (
            "ff.sign_webhook('default', 'known', null, null, array['x'], array[''::bytea])"
        ),
    }


async def test_there_is_a_scenario_for_every_function_that_writes(db: Database) -> None:
    sources = {
        row["proname"]: row["prosrc"]
        for row in await db.fetch(
            "select proname, prosrc from pg_proc where pronamespace = 'ff'::regnamespace"
        )
    }

    def writes(name: str, seen: frozenset[str] = frozenset()) -> bool:
        called = set(re.findall(r"\bff\.(\w+)\s*\(", sources[name])) & sources.keys()
        return bool(WRITES.search(sources[name])) or any(
            writes(inner, seen | {name}) for inner in called - seen - {name}
        )

    public = {name for name in sources if not name.startswith("_")}
    # Binding a login needs roles, which are the server's: tests/sql/namespace repeats those calls.
    # Keys are few and change rarely: tests/sql/waitpoint repeats those calls.
    keys = {"rotate_hmac_key", "seed_hmac_key"}
    # More partitions would be in the way of the other scenarios: tests/partitions/test_raising.py.
    raising = {"raise_partitions"}
    logins = {"grant_namespace", "revoke_namespace", "list_namespace_grants"}
    # It is called on connections of users: tests/steps/test_transactions.py cuts those.
    on_others = {"record_step_json", "deliver_signal_json"}
    # They write only where a partition has moved: tests/events/test_generations.py.
    readers = {"open_cursor", "read_events", "read_signals"}
    # tests/sql/api_token/test_api_tokens.py repeats them.
    tokens = {"create_api_token", "revoke_api_token", "use_api_token", "read_server_key"}
    elsewhere = logins | on_others | keys | raising | tokens
    writing = {name for name in public if writes(name)} - elsewhere - readers
    assert writing == {scenario.function for scenario in SCENARIOS}
    # What is left reads: the server lets it run where nothing may be written.
    async with FlowFabric(db.url) as client:
        known = await make_known(client)
    reads = calls_that_read(known)
    # This one needs a lease: tests/sql/signal calls it.
    held = {"observe_signals"}
    assert public - writing - elsewhere - held == reads.keys()
    for call in reads.values():
        async with db.conn.transaction(readonly=True):
            await db.fetch(f"select * from {call}")


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(len(SCENARIOS) // 10, id="some"),
        pytest.param(
            2 * len(SCENARIOS), id="both", marks=[pytest.mark.slow, pytest.mark.timeout(400)]
        ),
        pytest.param(504, id="full", marks=[pytest.mark.slow(short=0), pytest.mark.timeout(400)]),
    ],
)
async def test_a_repeat_has_one_effect_and_the_first_answer(
    db: Database, clock: Clock, runs: int, sized: Callable[..., int]
) -> None:
    runs = sized(runs, short=min(runs, len(SCENARIOS) // 2))
    random = Random(SEED)
    await db.execute(GATES)
    numbers = count(1)
    done: Counter[str] = Counter()
    wrong: list[str] = []
    scenarios = SCENARIOS if runs >= len(SCENARIOS) else drawn("scenarios").sample(SCENARIOS, runs)
    async with proxied(db.url) as proxy, FlowFabric(proxy.url, pool_size=2) as client:
        expected = {}
        for scenario in scenarios:
            stage = Stage(client, db, clock, next(numbers))
            await scenario.prepare(stage)
            expected[scenario.name] = await _effect(db, scenario.act(stage))
        for run in range(runs):
            turn, number = divmod(run, len(scenarios))
            scenario = scenarios[number]
            # Every other time the cut comes while the statement runs, and for every other scenario.
            is_overlapping = scenario.places and (turn + number) % 2
            place = random.choice(scenario.places) if is_overlapping else None
            stage = Stage(client, db, clock, next(numbers))
            await scenario.prepare(stage)
            effect, answer = await _effect(
                db, _with_cut(proxy, db, scenario, scenario.act(stage), place, random)
            )
            want_effect, want_answer = expected[scenario.name]
            if scenario.may_give_way and place == "event" and answer == []:
                want_effect, want_answer = Counter({"claim slots": 1}), []
                done["claim_executions gave way"] += 1
            what = f"{scenario.name}, cut {f'while in {place}' if place else 'after the commit'}"
            done[f"{scenario.function} {'overlapping' if place else 'after commit'}"] += 1
            if effect != want_effect:
                wrong.append(f"{what}: did {effect - want_effect}, not {want_effect - effect}")
            if answer != want_answer and not (scenario.is_sweep and answer == 0):
                wrong.append(f"{what}: answered {answer!r}, not {want_answer!r}")
        assert proxy.cuts == runs
    print(f"{runs} runs: {dict(sorted(done.items()))}")
    assert not wrong, "\n".join(sorted(f"{n} x {text}" for text, n in Counter(wrong).items()))
    assert {name.split()[0] for name in done} == {scenario.function for scenario in scenarios}


async def _effect(db: Database, act: Awaitable[Any]) -> tuple[Counter[str], Any]:
    """What a call left behind, and its answer (an error is one, too)."""
    before = await _counts(db)
    try:
        answer = await act
    except (FlowFabricError, AssertionError) as error:
        answer = f"{type(error).__name__}: {error}"
    # An original that was cut off may still be at work; nothing else is.
    await _until_quiet(db)
    after = await _counts(db)
    after.subtract(before)
    return Counter({what: n for what, n in after.items() if n}), answer


async def _counts(db: Database) -> Counter[str]:
    return Counter({what: int(n or 0) for what, n in await db.fetch(COUNTS)})


async def _until_quiet(db: Database) -> None:
    async def is_quiet() -> bool:
        return not await db.fetchval(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and state <> 'idle' and backend_type = 'client backend')"
        )

    await eventually(is_quiet)


async def _with_cut(
    proxy: Proxy,
    db: Database,
    scenario: Scenario,
    act: Awaitable[Any],
    place: str | None,
    random: Random,
) -> Any:
    """Make the call, cut its first try off, and let original and repeat overlap if asked."""
    if place is None:
        proxy.cut = cut = Cut(scenario.function)
        answer = await act
        assert cut.repeated.is_set()
        return answer

    side = await db.connect()

    async def hold(pid: int) -> None:
        await side.execute("insert into ff_test.held values ($1, $2)", pid, place)

    async def until_held(pid: int) -> None:
        sleeps = "select wait_event = 'PgSleep' from pg_stat_activity where pid = $1"
        await eventually(lambda: side.fetchval(sleeps, pid))

    proxy.cut = cut = Cut(scenario.function, before=hold, running=until_held)
    acting = asyncio.ensure_future(act)
    try:
        await asyncio.wait_for(cut.repeated.wait(), 60)
        # Sometimes the repeat gets as far as it can, sometimes the two run on together.
        await asyncio.wait([acting], timeout=random.choice((0.0, 0.005, 0.15)))
    finally:
        await side.execute("delete from ff_test.held")
        await side.close()
    return await acting
