"""Schedules: workers declare and fire them; operators list, pause, resume and run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from flowfabric.client.lanes import Lanes
from flowfabric.client.submissions import options
from flowfabric.core.errors import InvalidInput, RetryExhausted, ScheduleNotFound
from flowfabric.core.execution import Submission, check_name, check_tags, check_words
from flowfabric.core.ids import ExecutionId, firing_id, mint_for_schedule, uuid7
from flowfabric.core.schedule import (
    DueSchedule,
    Plan,
    Rule,
    ScheduleInfo,
    near,
    plan,
)
from flowfabric.core.states import Misfire, ScheduleState
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

# How many times `resume` is tried while an app changes the rule at the same time.
_TRIES = 5
MAX_NEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One schedule as an app declares it.

    Each firing stores a copy of `submission` under a new id. If an `every` rule has no anchor,
    `Schedules.declare` chooses one.
    """

    name: str
    submission: Submission
    rule: Rule
    misfire: Misfire = Misfire.ONCE


@dataclass(frozen=True, slots=True)
class Declared:
    """The answer to a declaration.

    `outcome` is one of these words:

    - `declared`: the declaration is in force.
    - `older`: a newer version of the app has already declared its schedules.
    - `superseded`: another worker of this version has declared different schedules in the meantime.

    `orphaned` lists the schedules that this call orphaned: the declaration no longer contains them.
    """

    outcome: str
    generation: int
    version: tuple[int, ...]
    orphaned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fired:
    """How many executions a call submitted, and when the schedule is due next (None: never).

    `outcome` is `fired`, or says why nothing was submitted: `already_fired`, `inactive` or `gone`.
    """

    outcome: str
    count: int
    next_at: datetime | None


_info = reader(
    ScheduleInfo,
    functions.LIST_SCHEDULES,
    given="last_id",
    unread="last_id last_partition",
    state=ScheduleState,
    version=lambda numbers: ".".join(map(str, numbers)),
    misfire=Misfire,
)
_declared = reader(Declared, functions.DECLARE_SCHEDULES, version=tuple, orphaned=tuple)
_fired = reader(Fired, functions.FIRE_SCHEDULE, given="count", unread="fired")


class Schedules:
    """Operations on schedules."""

    def __init__(self, database: Database, lanes: Lanes, namespace: str | None) -> None:
        self._database = database
        self._lanes = lanes
        self._namespace = namespace

    # For operators

    async def get(
        self, name: str, *, app: str | None = None, namespace: str | None = None
    ) -> ScheduleInfo:
        """Return one schedule by its name.

        Raises ScheduleNotFound if there is no schedule with this name, and InvalidInput if several
        apps or namespaces have one.
        """
        check_name("name", name)
        if app is not None:
            check_name("app", app)
        if namespace is not None:
            check_name("namespace", namespace)
        found = [
            one
            for one in await self._read(app, name)
            if namespace is None or one.namespace == namespace
        ]
        if not found:
            known = {one.name for one in await self._read(app, None)}
            raise ScheduleNotFound(
                f"There is no schedule named {name!r} here{near(name, known)}", name=name, app=app
            )
        if len(found) > 1:
            where = sorted({one.app for one in found})
            if len(where) > 1:
                raise InvalidInput(
                    field="app", problem=f"must be given: {name} is in the apps {', '.join(where)}"
                )
            spaces = ", ".join(sorted(one.namespace for one in found))
            raise InvalidInput(field="namespace", problem=f"must be given: {name} is in {spaces}")
        return found[0]

    async def pause(
        self,
        name: str,
        *,
        app: str | None = None,
        namespace: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> ScheduleInfo:
        """Pause a schedule until `resume` is called. Times that pass before that are skipped."""
        check_words(reason=reason, actor=actor)
        found = await self.get(name, app=app, namespace=namespace)
        await self._set(found, True, None, reason, actor)
        return await self.get(name, app=found.app, namespace=found.namespace)

    async def resume(
        self,
        name: str,
        *,
        app: str | None = None,
        namespace: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> ScheduleInfo:
        """Resume a paused schedule. It fires next at the first time of its rule after now."""
        check_words(reason=reason, actor=actor)
        for _ in range(_TRIES):
            found = await self.get(name, app=app, namespace=namespace)
            next_at = found.rule.after(await self._now())
            if await self._set(found, False, next_at, reason, actor) != "rule_changed":
                return await self.get(name, app=found.app, namespace=found.namespace)
        raise RetryExhausted(operation="set_schedule")

    async def run(
        self,
        name: str,
        *,
        app: str | None = None,
        namespace: str | None = None,
        actor: str | None = None,
        uuid: UUID | None = None,
    ) -> ExecutionId:
        """Submit the task of a schedule now; raise ScheduleOrphaned if the schedule is orphaned.

        A repeat with the same `uuid` submits nothing and returns the same id.
        """
        check_words(actor=actor)
        found = await self.get(name, app=app, namespace=namespace)
        minted = (await self._database.partitions.current()).minted
        id = mint_for_schedule(found.schedule_id, minted, uuid)
        await self._database.call(
            functions.RUN_SCHEDULE,
            partition_key=id.partition_key,
            namespace=found.namespace,
            app=found.app,
            name=found.name,
            execution_id=id.uuid,
            actor=actor,
        )
        return id

    async def next(
        self,
        name: str,
        *,
        count: int = 5,
        app: str | None = None,
        namespace: str | None = None,
    ) -> list[datetime]:
        """Return the next times of a schedule's rule, even if the schedule is paused."""
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NEXT:
            raise InvalidInput(field="count", problem=f"must be 1 to {MAX_NEXT}")
        found = await self.get(name, app=app, namespace=namespace)
        if found.next_at is not None:
            return [found.next_at, *islice(found.rule.times(found.next_at), count - 1)]
        return list(islice(found.rule.times(await self._now()), count))

    async def forget(
        self, name: str, *, app: str | None = None, namespace: str | None = None
    ) -> None:
        """Delete an orphaned schedule. The executions that it submitted stay."""
        found = await self.get(name, app=app, namespace=namespace)
        await self._database.call(
            functions.FORGET_SCHEDULE, namespace=found.namespace, app=found.app, name=found.name
        )

    # For workers

    async def declare(
        self,
        app: str,
        version: Sequence[int],
        declarations: Sequence[Declaration],
        *,
        namespace: str | None = None,
        generation: int | None = None,
    ) -> Declared:
        """Declare the schedules of an app.

        To declare the same schedules again, pass the `generation` that the first call returned.
        Then the call does not undo what other workers have declared since.
        """
        space = self._own(namespace)
        check_name("app", app)
        for one in declarations:
            check_tags(one.submission.tags)
        await self._lanes.prepare([one.submission for one in declarations])
        routes = [await self._lanes.register(one.submission.route) for one in declarations]
        now = (await self._now()).replace(microsecond=0)
        anchors = await self._anchors(space, app, declarations, now)
        next_ats = [
            Rule(one.rule.cron, one.rule.every, one.rule.time_zone, anchor).after(now)
            for one, anchor in zip(declarations, anchors, strict=True)
        ]
        rows = await self._database.call(
            functions.DECLARE_SCHEDULES,
            namespace=space,
            app=app,
            version=list(version),
            generation=generation,
            names=[one.name for one in declarations],
            schedule_ids=[uuid7() for _ in declarations],
            route_ids=routes,
            crons=[one.rule.cron for one in declarations],
            everys=[one.rule.every for one in declarations],
            time_zones=[one.rule.time_zone for one in declarations],
            anchor_ats=anchors,
            are_anchored=[one.rule.anchor is not None for one in declarations],
            misfires=[one.misfire.value for one in declarations],
            next_ats=next_ats,
            payloads=[one.submission.payload for one in declarations],
            payload_encodings=[one.submission.payload_encoding for one in declarations],
            priorities=[one.submission.priority for one in declarations],
            options=options([one.submission for one in declarations]),
        )
        return _declared(rows[0])

    async def due(
        self, app: str, names: Sequence[str] | None = None, *, namespace: str | None = None
    ) -> tuple[list[DueSchedule], datetime, timedelta | None]:
        """List the due schedules.

        Also return the database time, and the time until the next schedule is due.
        """
        *rows, last = await self._database.call(
            functions.DUE_SCHEDULES,
            namespace=self._own(namespace),
            app=app,
            names=None if names is None else list(names),
            limit=1000,
        )
        return [_due(row) for row in rows], last["read_at"], last["due_in"]

    async def fire(
        self,
        app: str,
        due: DueSchedule,
        now: datetime,
        *,
        namespace: str | None = None,
        call_id: UUID | None = None,
    ) -> Fired:
        """Submit the executions of a due schedule, as its misfire rule says, and set its next time.

        Submits nothing if another worker has fired the schedule first.
        """
        todo = plan(due.rule, due.misfire, due.next_at, now)
        return await self._fire(self._own(namespace), app, due, todo, call_id or uuid7())

    async def _fire(
        self, namespace: str, app: str, due: DueSchedule, todo: Plan, call_id: UUID
    ) -> Fired:
        minted = (await self._database.partitions.current()).minted
        ids = [firing_id(due.schedule_id, at, minted) for at in todo.fire_ats]
        rows = await self._database.call(
            functions.FIRE_SCHEDULE,
            partition_key=firing_id(due.schedule_id, due.next_at, minted).partition_key,
            namespace=namespace,
            app=app,
            name=due.name,
            call_id=call_id,
            rule_no=due.rule_no,
            expected_next_at=due.next_at,
            fire_ats=todo.fire_ats,
            next_at=todo.next_at,
            execution_ids=[id.uuid for id in ids],
        )
        return _fired(rows[0], rows[0]["fired"])

    async def _anchors(
        self,
        namespace: str,
        app: str,
        declarations: Sequence[Declaration],
        now: datetime,
    ) -> list[datetime | None]:
        """Return the anchor of each rule.

        If an `every` rule has none, use the stored anchor of its schedule. If the schedule is new,
        or if its interval has changed, use `now`.
        """
        if all(one.rule.every is None or one.rule.anchor is not None for one in declarations):
            return [one.rule.anchor for one in declarations]
        stored = {
            one.name: one
            for one in await self._read(app, None)
            if one.namespace == namespace and one.every is not None
        }
        anchors: list[datetime | None] = []
        for one in declarations:
            known = stored.get(one.name)
            if one.rule.every is None or one.rule.anchor is not None:
                anchors.append(one.rule.anchor)
            elif known is not None and known.every == one.rule.every:
                anchors.append(known.anchor_at)
            else:
                anchors.append(now)
        return anchors

    async def _set(
        self,
        found: ScheduleInfo,
        is_paused: bool,
        next_at: datetime | None,
        reason: str | None,
        actor: str | None,
    ) -> str:
        rows = await self._database.call(
            functions.SET_SCHEDULE,
            namespace=found.namespace,
            app=found.app,
            name=found.name,
            is_paused=is_paused,
            next_at=next_at,
            rule_no=found.rule_no,
            reason=reason,
            actor=actor,
        )
        return str(rows[0]["outcome"])

    async def _read(self, app: str | None, name: str | None) -> list[ScheduleInfo]:
        rows = await self._database.call(
            functions.LIST_SCHEDULES, namespace=self._namespace, app=app, name=name
        )
        return [_info(row, _last_id(row)) for row in rows]

    async def _now(self) -> datetime:
        rows = await self._database.call(functions.SERVER_TIME)
        now: datetime = rows[0]["server_time"]
        return now

    def _own(self, namespace: str | None) -> str:
        """Return the given namespace, or the client's namespace if none is given.

        Raise InvalidInput if both are missing, or if they differ.
        """
        if namespace is not None and self._namespace not in (None, namespace):
            raise InvalidInput(field="namespace", problem="is not the namespace of this client")
        space = self._namespace if namespace is None else namespace
        if space is None:
            raise InvalidInput(field="namespace", problem="must be given")
        return space

    async def list(self, *, app: str | None = None) -> list[ScheduleInfo]:
        """List the schedules of all apps, or of one app, sorted by namespace, app and name."""
        if app is not None:
            check_name("app", app)
        return await self._read(app, None)


def _last_id(row: Any) -> ExecutionId | None:
    if row["last_id"] is None:
        return None
    return ExecutionId.of(row["last_partition"], row["last_id"])


def _due(row: Any) -> DueSchedule:
    return DueSchedule(
        name=row["name"],
        schedule_id=row["schedule_id"],
        rule=Rule(row["cron"], row["every"], row["time_zone"], row["anchor_at"]),
        rule_no=row["rule_no"],
        misfire=Misfire(row["misfire"]),
        next_at=row["next_at"],
    )
