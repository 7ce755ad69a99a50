"""A model of schedules: the answers and changes of declare, fire, pause and forget.

It is pure, like support/model.py, and tests/model/test_schedules.py runs it beside a real database.
The client computes when a rule is due. Here a rule is only a word, and the caller passes the times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from flowfabric.core.states import Misfire, ScheduleState

from .model import Answer, Refusal, invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One schedule as its app declares it."""

    cron: str | None = None
    every: timedelta | None = None
    time_zone: str = "UTC"
    anchor_at: datetime | None = None
    is_anchored: bool = False
    misfire: str = Misfire.ONCE
    priority: int = 0
    next_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Schedule:
    cron: str | None
    every: timedelta | None
    time_zone: str
    anchor_at: datetime | None
    is_anchored: bool
    misfire: str
    priority: int
    declared_at: datetime
    next_at: datetime | None
    rule_no: int = 0
    is_paused: bool = False
    orphaned_at: datetime | None = None
    last_at: datetime | None = None
    last_id: UUID | None = None
    fired_count: int = 0
    last_call_id: UUID | None = None
    last_call_count: int | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None
    reason: str | None = None

    @property
    def state(self) -> ScheduleState:
        if self.orphaned_at is not None:
            return ScheduleState.ORPHANED
        return ScheduleState.PAUSED if self.is_paused else ScheduleState.ACTIVE

    def has_rule(self, new: Declared) -> bool:
        """Return whether the new rule has the same times. An anchor counts only if declared."""
        same = (self.cron, self.every, self.time_zone) == (new.cron, new.every, new.time_zone)
        return same and not (new.is_anchored and new.anchor_at != self.anchor_at)


@dataclass(slots=True)
class App:
    version: tuple[int, ...]
    generation: int = 0
    schedules: dict[str, Schedule] = field(default_factory=dict)


class Schedules:
    def __init__(self, now: datetime) -> None:
        self.now = now
        self.apps: dict[str, App] = {}
        # The submitted executions, with the schedule and the scheduled time.
        self.submitted: dict[UUID, tuple[str, datetime]] = {}
        self.is_lane_open = True

    def _find(self, app: str, name: str) -> Schedule | None:
        return self.apps[app].schedules.get(name) if app in self.apps else None

    def _submit(self, name: str, ats: Sequence[datetime], ids: Sequence[UUID]) -> None:
        """Submit executions. An existing execution is kept for its time."""
        new = {id_: (name, at) for id_, at in zip(ids, ats, strict=True)}
        if not self.is_lane_open and not new.keys() <= self.submitted.keys():
            raise Refusal("lane_closed", field="lane")
        self.submitted = new | self.submitted

    def declare(
        self,
        app: str,
        version: tuple[int, ...],
        generation: int | None,
        items: Mapping[str, Declared],
    ) -> Answer:
        """Declare the schedules of an app. Schedules that are not declared become orphans.

        The newest version decides. Among workers of one version, the last one to start decides.
        """
        if not version:
            raise invalid("version")
        for item in items.values():
            if (item.cron is None) == (item.every is None):
                raise invalid("cron")
            if item.next_at is None:
                raise invalid("next_at")
        known = self.apps.setdefault(app, App(version))
        known.version = max(known.version, version)
        word = "declared"
        if known.version > version:
            word = "older"
        elif generation is not None and known.generation > generation:
            word = "superseded"
        elif self._declare(known, items):
            known.generation += 1
        return Answer(word, {"generation": known.generation, "version": list(known.version)})

    def _declare(self, known: App, items: Mapping[str, Declared]) -> bool:
        """Store declared schedules. Return whether anything is new."""
        is_new = False
        for name, item in items.items():
            there = known.schedules.get(name)
            if there is None:
                known.schedules[name] = Schedule(
                    cron=item.cron,
                    every=item.every,
                    time_zone=item.time_zone,
                    anchor_at=item.anchor_at,
                    is_anchored=item.is_anchored,
                    misfire=item.misfire,
                    priority=item.priority,
                    declared_at=self.now,
                    next_at=item.next_at,
                )
                is_new = True
                continue
            has_new_rule = not there.has_rule(item)
            what = (item.misfire, item.priority, item.is_anchored)
            is_new |= (
                has_new_rule
                or there.orphaned_at is not None
                or what != (there.misfire, there.priority, there.is_anchored)
            )
            if has_new_rule:
                there.cron, there.every, there.time_zone = item.cron, item.every, item.time_zone
                there.anchor_at = item.anchor_at
                there.rule_no += 1
            there.misfire, there.priority, there.is_anchored = what
            # A paused schedule stays paused. The missed times of an orphan do not fire later.
            if not there.is_paused and (has_new_rule or there.orphaned_at is not None):
                there.next_at = item.next_at
            there.orphaned_at = None
        for name, schedule in known.schedules.items():
            if name not in items and schedule.orphaned_at is None:
                schedule.orphaned_at = self.now
                schedule.next_at = None
                is_new = True
        return is_new

    def due(self, app: str, names: Sequence[str] | None) -> Answer:
        active = [
            (schedule.next_at, name)
            for name, schedule in (self.apps[app].schedules if app in self.apps else {}).items()
            if schedule.next_at is not None and (names is None or name in names)
        ]
        later = [at - self.now for at, _ in active if at > self.now]
        return Answer(
            "due",
            {
                "names": [name for at, name in sorted(active) if at <= self.now],
                "due_in": min(later, default=None),
            },
        )

    def fire(
        self,
        app: str,
        name: str,
        call_id: UUID,
        rule_no: int,
        expected: datetime | None,
        ats: Sequence[datetime],
        next_at: datetime | None,
        ids: Sequence[UUID],
    ) -> Answer:
        """Fire a schedule, unless it has changed since it was read. Repeats answer the same."""
        if expected is None or expected > self.now:
            raise invalid("expected_next_at")
        times = [expected - timedelta(microseconds=1), *ats]
        if any(b <= a for a, b in pairwise(times)) or max(times) > self.now:
            raise invalid("fire_ats")
        if next_at is None or next_at <= (ats[-1] if ats else expected):
            raise invalid("next_at")
        schedule = self._find(app, name)
        if schedule is None:
            return self._fired("gone", 0, None)
        if schedule.next_at == expected and schedule.rule_no == rule_no:
            self._submit(name, ats, ids)
            schedule.next_at = next_at
            if ats:
                schedule.last_at, schedule.last_id = ats[-1], ids[-1]
            schedule.fired_count += len(ats)
            schedule.last_call_id, schedule.last_call_count = call_id, len(ats)
            return self._fired("fired", len(ats), next_at)
        if schedule.last_call_id == call_id:
            return self._fired("fired", schedule.last_call_count, next_at)
        return self._fired(
            "inactive" if schedule.next_at is None else "already_fired", 0, schedule.next_at
        )

    @staticmethod
    def _fired(word: str, fired: int | None, next_at: datetime | None) -> Answer:
        return Answer(word, {"fired": fired, "next_at": next_at})

    def set(
        self,
        app: str,
        name: str,
        is_paused: bool | None,
        next_at: datetime | None,
        rule_no: int | None,
        reason: str | None,
        actor: str | None,
    ) -> Answer:
        """Pause a schedule, or resume it at a time that the present rule gave."""
        if is_paused is None:
            raise invalid("is_paused")
        if not is_paused and rule_no is None:
            raise invalid("rule_no")
        if not is_paused and next_at is None:
            raise invalid("next_at")
        schedule = self._find(app, name)
        if schedule is None:
            raise Refusal("schedule_not_found")
        word = "unchanged"
        if is_paused:
            told: tuple[Any, ...] = (True, reason, actor)
            if told != (schedule.is_paused, schedule.reason, schedule.changed_by):
                word = "changed"
        elif schedule.is_paused:
            word = "changed" if schedule.rule_no == rule_no else "rule_changed"
        if word == "changed":
            schedule.is_paused = is_paused
            is_active = schedule.state == ScheduleState.ACTIVE
            schedule.next_at = next_at if is_active else None
            schedule.reason, schedule.changed_by = reason, actor
            schedule.changed_at = max(self.now, schedule.changed_at or self.now)
        return Answer(word, {"state": str(schedule.state), "next_at": schedule.next_at})

    def run(self, app: str, name: str, id_: UUID) -> Answer:
        """Run a schedule now, in addition to its times, even if it is paused."""
        schedule = self._find(app, name)
        if schedule is None:
            raise Refusal("schedule_not_found")
        if schedule.state == ScheduleState.ORPHANED:
            raise Refusal("schedule_orphaned")
        self._submit(name, [self.now], [id_])
        return Answer("submitted", {"execution_id": id_})

    def forget(self, app: str, name: str) -> Answer:
        """Delete an orphan. Refuse other schedules: the next worker would declare them again."""
        schedule = self._find(app, name)
        if schedule is not None:
            if schedule.orphaned_at is None:
                raise invalid("name")
            del self.apps[app].schedules[name]
        return Answer("forgotten")
