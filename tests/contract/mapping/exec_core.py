"""exec_core.rs: creating, reading, cancelling, trimming."""

from __future__ import annotations

from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.core.ids import ExecutionId, mint

from .world import HOUR, SECOND, See, World, forged, graph, operation, said

SOURCE = "exec_core.rs"


@operation(
    "create_execution",
    sql=["register_routes", "submit_executions"],
    python=["executions.submit"],
    reasons=[
        "0006",
        "0010",
        "D-01",
        "D-02",
        "D-03",
        "D-04",
        "D-05",
        "D-06",
        "ruling: the same key with other arguments is KeyReused",
    ],
)
async def _(world: World, see: See) -> None:
    """A stored execution can be claimed at once, or when its delay is over. Required capabilities
    are stored and checked, the priority is clamped, a key used before leads to the first execution,
    and the same key with other arguments is refused. Submitting an id again in its namespace is a
    success; the nil id is refused.
    """
    id = await world.submit(priority=20_000, needs=["gpu"])
    shown = await world.executions.describe(id)
    first = await world.submit(key="k", key_fingerprint=b"1")
    again = await world.submit(key="k", key_fingerprint=b"1")
    see("state", await world.state(id), "waiting")
    see("events", await world.kinds(id), ["submitted"])
    see("priority_20000", shown.priority, 9000)
    see("needs", sorted(shown.capabilities), ["gpu"])
    see("with_a_delay", await world.state(await world.submit(delay=HOUR)), "delayed")
    see("same_id_again", await said(world.submit(id=id, needs=["gpu"])), "success")
    see("same_key_again", "duplicate" if again == first else "another execution", "duplicate")
    see(
        "same_key_other_arguments",
        await said(world.submit(key="k", key_fingerprint=b"2")),
        "KeyReused",
    )
    see("bad_tag_key", await said(world.submit(tags={"Bad": "1"})), "InvalidInput")
    nil = ExecutionId.of(0, UUID(int=0))
    see("nil_id", await said(world.submit(id=nil)), "InvalidInput")


@operation(
    "describe_execution",
    sql=["describe_execution"],
    python=["executions.describe"],
    reasons=["0005", "D-30", "D-36"],
)
async def _(world: World, see: See) -> None:
    """It answers in every state, with the current lease and attempt, in typed columns."""
    held = await world.claimed(tags={"team.b": "2", "team.a": "1"})
    shown = await world.executions.describe(held.id)
    see("state", str(shown.public_state), "active")
    see(
        "lease",
        "the holder's" if shown.lease_id == held.lease_id else shown.lease_id,
        "the holder's",
    )
    see(
        "attempt",
        "the holder's" if shown.attempt_id == held.attempt_id else shown.attempt_id,
        "the holder's",
    )
    see("tags", list(shown.tags), ["team.a", "team.b"])
    see("missing", str(await world.executions.describe(mint())), "None")


@operation(
    "read_execution_context",
    sql=["describe_execution"],
    python=["executions.context"],
    reasons=["0006", "D-38"],
)
async def _(world: World, see: See) -> None:
    """For a missing execution it returns None, as every read does, and does not call the id bad
    input. Workers need no such call: a claim returns the payload. The kind is called task.
    """
    id = await world.submit(payload=b"[1]", tags={"team.a": "1"})
    context = await world.executions.context(id)
    see("payload", context.payload.decode(), "[1]")
    see("task", context.task, "app.send")
    see("tags", list(context.tags), ["team.a"])
    see("missing", str(await world.executions.context(mint())), "None")


@operation(
    "read_current_attempt_index",
    sql=["read_execution_info"],
    python=["executions.attempt_count"],
    reasons=["0002", "D-16", "D-38"],
)
async def _(world: World, see: See) -> None:
    """It names the current attempt, whichever way that attempt was claimed, counted from 1: the
    number of attempts is the number of the latest. For a missing execution it returns None.
    """
    read = world.executions.attempt_count
    id = await world.submit(lane="a")
    see("before_the_first", await read(id), 0)
    held = await world.next("a")
    see("during_the_first", await read(id), 1)
    await world.lose(held)
    await world.next("a")
    see("during_the_second", await read(id), 2)
    see("missing", str(await read(mint())), "None")


@operation(
    "read_total_attempt_count",
    sql=["read_execution_info"],
    python=["executions.attempt_count"],
    reasons=["0002", "D-17", "D-38"],
)
async def _(world: World, see: See) -> None:
    """It counts every new attempt, so that no attempt overwrites another; a resumed attempt is not
    new. For a missing execution it returns None.
    """
    read = world.executions.attempt_count
    id = await world.submit(lane="a")
    see("before_the_first", await read(id), 0)
    held = await world.next("a")
    see("during_the_first", await read(id), 1)
    await world.client.leases.release([held])
    held = await world.next("a")
    see("resumed", await read(id), 1)
    await world.lose(held)
    await world.next("a")
    see("during_the_second", await read(id), 2)
    see("missing", str(await read(mint())), "None")


@operation(
    "read_execution_state",
    sql=["read_execution_info"],
    python=["executions.state"],
    reasons=["0005", "D-33"],
)
async def _(world: World, see: See) -> None:
    """The database computes the public state from the dimensions, so the state is never stale."""
    id = await world.submit(lane="a")
    see("submitted", await world.state(id), "waiting")
    held = await world.next("a")
    see("claimed", await world.state(id), "active")
    await world.executions.delay(held, HOUR)
    see("delayed", await world.state(id), "delayed")
    await world.executions.retry(id)
    await world.executions.complete(await world.next("a"))
    see("completed", await world.state(id), "completed")
    see("missing", await world.state(mint()), "None")


@operation(
    "read_execution_info",
    sql=["read_execution_info"],
    python=["executions.info"],
    reasons=["0005", "0008", "D-31", "D-32", "D-34", "D-59"],
)
async def _(world: World, see: See) -> None:
    """The outcome has its own column, the same for every way to end. Times are aware datetimes, not
    text.
    """
    first = await world.now()
    held = await world.interrupted("a")
    await world.clock.advance(SECOND)
    await world.next("a")
    await world.executions.cancel(held.id)
    info = await world.executions.info(held.id)
    dimensions = (
        *(info.phase, info.ownership, info.eligibility, info.blocking_reason, info.outcome),
        *(info.attempt_state, info.public_state),
    )
    see(
        "vector",
        [str(value) for value in dimensions],
        [
            "terminal",
            "unowned",
            "not_applicable",
            "none",
            "cancelled",
            "attempt_terminal",
            "cancelled",
        ],
    )
    see(
        "started_at",
        "the first claim" if info.started_at == first else str(info.started_at),
        "the first claim",
    )
    see("missing", str(await world.executions.info(mint())), "None")


@operation(
    "get_execution_result",
    sql=["read_results"],
    python=["executions.result"],
    reasons=["0001", "D-66"],
)
async def _(world: World, see: See) -> None:
    """Bytes come back exactly as they were given. A replay clears the result of the earlier run."""
    read = world.executions.result
    held = await world.claimed(lane="a")
    see("while_it_runs", str(await read(held.id)), "None")
    await world.executions.complete(held, b"\x00\xff")
    see("bytes", (await read(held.id)).hex(), "00ff")
    await world.executions.replay(held.id)
    see("after_a_replay", str(await read(held.id)), "None")
    held = await world.claimed(lane="b")
    await world.fail(held)
    see("failed", str(await read(held.id)), "None")
    see("missing", str(await read(mint())), "None")


@operation(
    "set_execution_tag",
    sql=["set_tags"],
    python=["executions.set_tag"],
    reasons=["0006", "D-35", "D-37"],
)
async def _(world: World, see: See) -> None:
    """It sets the tag whether or not the execution had tags, and moves the time of the last change,
    unless the tag already has that value. One call may tag many executions.
    """
    tag = world.executions.set_tag
    id = await world.submit()
    await tag(id, "team.a", "1")
    before = await world.executions.describe(id)
    await world.clock.advance(SECOND)
    await tag(id, "team.a", "2")
    await tag(id, "team.b", "3")
    after = await world.executions.describe(id)
    see("tags", dict(after.tags), {"team.a": "2", "team.b": "3"})
    see("moves_mutated_at", after.mutated_at == before.mutated_at + SECOND, True)
    see("events", await world.kinds(id), ["submitted"])
    see("missing", await said(tag(mint(), "team.a", "1")), "ExecutionNotFound")
    see("bad_key", await said(tag(id, "Bad", "1")), "InvalidInput")


@operation(
    "get_execution_tag",
    sql=["describe_execution"],
    python=["executions.tag"],
    reasons=["D-38"],
)
async def _(world: World, see: See) -> None:
    """No difference: a bad key is refused; for a missing tag or execution it returns None."""
    tag = world.executions.tag
    id = await world.submit(tags={"team.a": "1"})
    see("value", await tag(id, "team.a"), "1")
    see("absent", str(await tag(id, "team.b")), "None")
    see("missing", str(await tag(mint(), "team.a")), "None")
    see("bad_key", await said(tag(id, "Bad")), "InvalidInput")


@operation(
    "get_execution_namespace",
    sql=["read_execution_info"],
    python=["executions.namespace"],
    reasons=["0007"],
)
async def _(world: World, see: See) -> None:
    """A client of another namespace gets the answer for a missing execution."""
    id = await world.submit()
    async with FlowFabric(world.db.url, namespace="other") as other:
        foreign = await other.executions.namespace(id)
    see("namespace", await world.executions.namespace(id), "test")
    see("missing", str(await world.executions.namespace(mint())), "None")
    see("from_another_namespace", str(foreign), "None")


@operation(
    "list_executions",
    sql=["list_execution_ids"],
    python=["executions.list_ids"],
    reasons=["ruling: a page of a list may be short and have a cursor"],
)
async def _(world: World, see: See) -> None:
    """It lists ids of one namespace in one partition, ascending. A call reads no more than 10 000
    executions, so a page may be short or empty and still have a cursor: continue until there is no
    cursor. A limit of 0 gives an empty page, a limit above 1000 counts as 1000. Our own function
    `list_executions` is different: it lists whole rows by state, lane, task, tag and time.
    """
    listed = world.executions.list_ids
    ids = sorted([await world.submit() for _ in range(3)], key=lambda id: id.uuid)
    first = await listed(limit=2)
    second = await listed(limit=2, after=first.cursor)
    see("ascending", first.ids + second.ids == ids, True)
    see("pages", [len(first.ids), len(second.ids)], [2, 1])
    see("last_cursor", str(second.cursor), "None")
    see("limit_0", (await listed(limit=0)).ids, [])
    see("bad_partition", await said(listed(partition=-1)), "InvalidInput")


@operation(
    "cancel",
    sql=["cancel_execution"],
    python=["executions.cancel"],
    reasons=["0010", "D-23", "D-59", "D-61"],
)
async def _(world: World, see: See) -> None:
    """The holder shows its whole fence. The lease ends with the execution, so that no later call
    can complete it. Every way to cancel stores the same state and writes the same event.
    """
    cancel = world.executions.cancel
    held = await world.claimed()
    see("without_its_lease", await said(cancel(held.id, source="lease_holder")), "InvalidInput")
    see(
        "forged_epoch",
        await said(cancel(held.id, source="lease_holder", claimed=forged(held))),
        "StaleLease",
    )
    see(
        "outcome", (await cancel(held.id, source="lease_holder", claimed=held)).outcome, "cancelled"
    )
    done = await world.completed("b")
    see("state", await world.state(held.id), "cancelled")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "cancelled"])
    see("cancelled_by", (await world.executions.describe(held.id)).cancelled_by, "lease_holder")
    see("again", (await cancel(held.id, source="lease_holder", claimed=held)).outcome, "cancelled")
    see("completing_after_it", await said(world.executions.complete(held)), "ExecutionNotActive")
    see(
        "of_a_completed_one",
        await said(cancel(done.id, source="lease_holder", claimed=done)),
        "ExecutionTerminal",
    )
    see(
        "missing",
        await said(cancel(mint(), source="lease_holder", claimed=held)),
        "ExecutionNotFound",
    )


@operation(
    "resolve_execution_flow_id",
    sql=["read_execution_info"],
    python=["executions.flow_id"],
    reasons=["D-30"],
)
async def _(world: World, see: See) -> None:
    """No difference."""
    flow, (member,) = await graph(world, "a", ())
    see(
        "member",
        "its flow" if await world.executions.flow_id(member) == flow else "another",
        "its flow",
    )
    see("solo", str(await world.executions.flow_id(await world.submit())), "None")
    see("missing", str(await world.executions.flow_id(mint())), "None")


@operation(
    "trim_retention",
    sql=["trim_retention"],
    python=["retention.trim"],
    reasons=["0003", "D-80", "D-83", "D-84", "ruling: 30 days after the end"],
)
async def _(world: World, see: See) -> None:
    """It deletes ended executions of every outcome, by the policy of the execution, else of its
    lane, else the default of 30 days. A child stays until its parent has ended, and a member of a
    flow until all members have ended. It checks again under the lock, skips locked rows, and keeps
    events for 24 h after the end by default. Only operators may call it; they may filter by
    namespace, lane and tags. Reconcilers call `trim_executions`, which takes no such parameter and
    uses the stored retention.
    """
    trim = world.client.retention.trim
    cancelled = await world.submit(lane="a")
    await world.executions.cancel(cancelled)
    completed = (await world.completed("b")).id
    await world.submit(lane="c")
    running = (await world.claim(lanes=["c"])).id
    parent = await world.submit(lane="d", delay=24 * HOUR)
    child = await world.submit(lane="e", parent_id=parent)
    await world.executions.cancel(child)
    _, (member, _) = await graph(world, "fg", ())
    await world.executions.cancel(member)
    too_young, _ = await trim(retention=2 * HOUR)
    await world.clock.advance(3 * HOUR)
    handled, _ = await trim(retention=2 * HOUR)
    see("too_young", too_young, 0)
    see("handled", handled, 2)
    see("cancelled", await world.state(cancelled), "None")
    see("completed", await world.state(completed), "None")
    see("running", await world.state(running), "active")
    see("child_of_one_that_goes_on", await world.state(child), "cancelled")
    see("member_beside_one_that_has_not_ended", await world.state(member), "cancelled")
    see("events_kept", await world.kinds(cancelled), ["submitted", "cancelled"])
