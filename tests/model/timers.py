"""What happens because time passes."""

from __future__ import annotations

from datetime import datetime, timedelta

from support.model import Execution, Step

from .bench import MINUTE, NOTHING, SECOND, Call
from .choices import AGAIN, between, one_of, operation
from .leases import Leases
from .steps import Steps


class Timers(Leases, Steps):
    """What happens because time passes."""

    @operation(
        5,
        span=one_of(
            [
                SECOND,
                5 * SECOND,
                10 * SECOND,
                10 * SECOND,
                20 * SECOND,
                30 * SECOND,
                30 * SECOND,
                MINUTE,
                5 * MINUTE,
                timedelta(hours=1),
                -5 * SECOND,
                -MINUTE,
            ]
        ),
    )
    def time_passes(self, span: timedelta) -> None:
        self._advance(span)

    @operation(3, again=AGAIN)
    def promote_delayed(self, again: bool) -> None:
        self._tick("promote_delayed", self.model.promote_delayed, again)

    @operation(3, again=AGAIN)
    def expire_executions(self, again: bool) -> None:
        self._tick("expire_executions", self.model.expire_executions, again)

    @operation(4, pick=between(0, 59), category=one_of([None, None, "io"]))
    def fail_again(self, pick: int, category: str | None) -> None:
        id_ = self.choose(pick, lambda e: e.policy.retry is not None and e.phase == "runnable")
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.delayed_until is not None:
            self.retry_execution(1, None, None, "any", False)
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self.fail([1], "current", None, "transient", "it broke", category, None, False)
        self.aim = None

    @operation(
        3,
        pick=between(0, 59),
        by=one_of([-SECOND, NOTHING, NOTHING, SECOND]),
        how=one_of(["complete", "complete", "renew", "fail", "record"]),
    )
    def come_late(self, pick: int, by: timedelta, how: str) -> None:
        """A holder acts at the last moment, or after it."""
        id_ = self.choose_held(pick)
        e = self.model.executions.get(id_)
        if e is None or e.lease_expires_at is None:
            return
        self._advance(max(e.lease_expires_at + by - self.model.now, NOTHING))
        self.aim = id_
        if how == "complete":
            self.complete([1], "current", None, False)
        elif how == "renew":
            self.renew([1], "current", None, 30 * SECOND, False)
        elif how == "fail":
            self.fail([1], "current", None, "transient", "it broke", None, None, False)
        else:
            save = Step(name="save", value=b"1", **self._position("save", 0))
            self._record([(self.fence(id_, "current"), save)], None, False)
        self.aim = None

    @operation(2, pick=between(0, 59))
    def run_out_of_time(self, pick: int) -> None:
        def ends_at(e: Execution) -> datetime | None:
            return e.attempt_deadline_at if e.is_leased else e.deadline_at

        id_ = self.choose(pick, lambda e: e.phase != "terminal" and ends_at(e) is not None)
        e = self.model.executions.get(id_)
        at = ends_at(e) if e is not None else None
        if at is not None:
            self._advance(max(at - self.model.now, NOTHING))
            self.expire_executions(False)

    @operation(
        1,
        retention=one_of([timedelta(hours=1), 10 * MINUTE]),
        floor=one_of([NOTHING, timedelta(hours=2)]),
    )
    def trim_retention(self, retention: timedelta, floor: timedelta) -> None:
        """Until the walk has been around: a call may begin in the middle."""
        call = Call(
            "trim_retention",
            {"partition_key": 0, "limit": 500, "retention": retention, "event_floor": floor},
            lambda rows: 0,
        )
        self._run(self.bench.connection.execute("delete from ff.trim_position"))
        self.step(call, lambda: self.model.trim_retention(retention, floor) * 0)

    @operation(1, again=AGAIN)
    def trim_events(self, again: bool) -> None:
        self._tick("trim_events", self.model.trim_events, again)

    @operation(1, again=AGAIN)
    def trim_keys(self, again: bool) -> None:
        self._tick("trim_keys", self.model.trim_keys, again)
