"""Steps of a handler, and what stops it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from support.model import Answer, Fence, Recorded, Step

from . import reading
from .bench import MINUTE, SECOND, Call, Disagreement
from .choices import (
    AGAIN,
    FENCES,
    PICK,
    STEPS_OF_A_HANDLER,
    WHO,
    between,
    one_of,
    operation,
    several,
)
from .executions import Executions
from .grants import Grants
from .operators import Operators

_UNLISTED = ("epoch", "opened_at", "taken_at", "signal_ids", "signal")
LISTED = tuple(f.name for f in fields(Recorded) if f.name not in _UNLISTED)


class Steps(Executions, Operators, Grants):
    """Steps of a handler, and what stops it."""

    @operation(
        12,
        picks=several(PICK, 4),
        is_one=one_of([False, True, True]),
        kind=FENCES,
        mixed=one_of([None] * 6 + ["former", "no_lease", "wrong_epoch"]),
        who=WHO,
        names=several(one_of(STEPS_OF_A_HANDLER * 3 + ["", "a\nb"]), 4),
        occurrences=several(one_of([0] * 8 + [1, 1, 2, -1]), 4),
        kinds=several(one_of(["step"] * 10 + ["failure", "sleep", "sleep", "now", "odd", None]), 4),
        delay=one_of([20 * SECOND] * 4 + [5 * MINUTE, -SECOND, None, timedelta(days=40_000)]),
        encoding=one_of([None] * 6 + ["json"] * 6 + ["e" * 65]),
        again=AGAIN,
    )
    def record_steps(
        self,
        picks: list[int],
        is_one: bool,
        kind: str,
        mixed: str | None,
        who: str | None,
        names: list[str],
        occurrences: list[int],
        kinds: list[str | None],
        delay: timedelta | None,
        encoding: str | None,
        again: bool,
    ) -> None:
        ids = [self.choose_held(picks[0] if is_one else pick) for pick in picks]
        items = []
        for n, id_ in enumerate(ids):
            # a fence that differs stands in the middle, or in front of the others
            is_odd = mixed is not None and n == len(ids) // 2
            fence = self.fence(id_, mixed if mixed is not None and is_odd else kind)
            step_kind = kinds[n % len(kinds)]
            is_plain = step_kind not in ("sleep", "now")
            step = Step(
                name=names[n % len(names)],
                occurrence=occurrences[n % len(occurrences)],
                kind=step_kind,
                value=b"%d" % picks[n] if is_plain or picks[n] > 60 else None,
                encoding=encoding,
                delay=delay if step_kind == "sleep" or picks[n] == 60 else None,
                **self._position(names[n % len(names)], occurrences[n % len(occurrences)]),
            )
            items.append((fence, step))
        self._record(items, who, again)

    @staticmethod
    def _position(name: str, occurrence: int) -> dict[str, Any]:
        """Where a handler would come to this step: those of the second kind run beside others."""
        places = {"load": 1, "save": 4, "nap": 8, "time": 12}
        if name in places:
            return {"position": places[name] + max(occurrence, 0), "is_sequential": True}
        return {"position": 4 + 4 * max(occurrence, 0), "is_sequential": False}

    def _record(self, items: list[tuple[Fence, Step]], who: str | None, again: bool) -> None:
        steps = [step for _, step in items]
        call = self._fenced_batch(
            "record_steps",
            [fence for fence, _ in items],
            who,
            "",
            names=[step.name for step in steps],
            occurrences=[step.occurrence for step in steps],
            positions=[step.position for step in steps],
            are_sequential=[step.is_sequential for step in steps],
            kinds=[step.kind for step in steps],
            values=[step.value for step in steps],
            encodings=[step.encoding for step in steps],
            delays=[step.delay for step in steps],
        )
        call.read = reading.recorded

        def expect() -> list[Answer]:
            return self.model.record_steps(who, items)

        answers = self.step(call, expect, target=items[0][0].execution_id)
        if again and isinstance(answers, list):
            for first, second in zip(answers, self.step(call, expect), strict=True):
                kept = ("recorded_at", "until_at", "attempt_index")
                if first.word == "recorded" and (
                    second.word != "exists" or any(first[n] != second[n] for n in kept)
                ):
                    raise Disagreement(f"a repeated step answered {second}, not {first}")

    @operation(
        4,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        ahead=one_of([0] * 6 + [-1, -1, -5, 1]),
        size=between(1, 3),
        again=AGAIN,
    )
    def append_frames(
        self, pick: int, kind: str, who: str | None, ahead: int, size: int, again: bool
    ) -> None:
        """Frames that go on, that repeat others, or that leave some out."""
        id_ = self.choose_held(pick)
        fence = self.fence(id_, kind)
        e = self.model.executions.get(id_)
        stream = e.stream if e is not None else None
        is_first = e is None or stream is None or stream.lease_id != e.lease_id
        first_no = ahead + (0 if is_first or stream is None else stream.last_no + 1)
        call = self._fenced_batch(
            "append_frames",
            [fence],
            who,
            "",
            bases=[0],
            positions=[0],
            modes=["durable"],
            first_nos=[first_no],
            counts=[size],
            payloads=[b"x"] * size,
            kinds=["text"] * size,
            encodings=["text"] * size,
        )
        call.read = reading.appended
        self.step(
            call,
            lambda: self.model.append_frames(who, fence, first_no, size),
            target=id_,
            again=again,
        )

    @operation(3, pick=between(0, 59), is_new=one_of([False, True]), again=AGAIN)
    def stream_again(self, pick: int, is_new: bool, again: bool) -> None:
        """A handler streams, its lease or its generation ends, and it streams again."""
        id_ = self.choose(pick, lambda e: e.is_leased or e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self.append_frames(1, "current", None, 0, 2, again)
        self.append_frames(1, "current", None, -1, 3, again)
        self.append_frames(1, "current", None, 1, 1, again)
        if is_new:
            self.continue_execution(1, "current", None, False)
        else:
            self.hold_execution(1, "current", None, "it was renamed", False)
            self.retry_execution(1, None, "ann", "any", False)
        self.issue_grant_and_claim(1, None, False)
        self.append_frames(1, "current", None, 0, 2, again)
        self.append_frames(1, "former", None, 0, 2, again)
        self.aim = None

    @operation(2, pick=PICK, who=WHO)
    def list_steps(self, pick: int, who: str | None) -> None:
        id_ = self.choose(pick, lambda e: bool(e.journal))
        self.step(
            Call(
                "list_steps",
                {"partition_key": 0, "namespace": who, "execution_ids": [id_]},
                lambda rows: [{name: row[name] for name in LISTED} for row in rows],
            ),
            lambda: [
                {name: getattr(step, name) for name in LISTED}
                for step in self.model.list_steps(who, id_)
            ],
            target=id_,
            again=True,
        )

    @operation(
        4,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        reason=one_of(["why"] * 5 + [None, "", "x" * 257]),
        again=AGAIN,
    )
    def hold_execution(
        self, pick: int, kind: str, who: str | None, reason: str | None, again: bool
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("hold_execution", fence, who, reason=reason),
            lambda: self.model.hold(who, fence, reason),
            target=fence.execution_id,
            again=again,
        )

    @operation(4, pick=PICK, kind=FENCES, who=WHO, again=AGAIN)
    def continue_execution(self, pick: int, kind: str, who: str | None, again: bool) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single(
                "continue_execution",
                fence,
                who,
                "generation",
                payload=b"[2]",
                payload_encoding="json",
            ),
            lambda: self.model.continue_as(who, fence),
            target=fence.execution_id,
            again=again,
        )

    @operation(3, pick=between(0, 59), how=one_of(["retry", "step", "fresh"]))
    def hold_and_repair(self, pick: int, how: str) -> None:
        """A handler finds steps that are not its own, and an operator helps it."""
        id_ = self.choose(pick, lambda e: e.is_leased or e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        load = Step(name="load", value=b"1", **self._position("load", 0))
        self._record([(self.fence(id_, "current"), load)], None, False)
        self.hold_execution(1, "current", None, "it was renamed", False)
        if how == "retry":
            self.retry_execution(1, None, "ann", "any", False)
        else:
            self.replay_execution(1, None, "ann", "any", how, True, False)
        self.aim = None

    @operation(3, pick=between(0, 59), is_woken=one_of([False, True]))
    def sleep_again(self, pick: int, is_woken: bool) -> None:
        """A handler falls asleep, and now and then an operator wakes it."""
        id_ = self.choose(pick, lambda e: e.is_leased)
        e = self.model.executions.get(id_)
        if e is None or not e.is_leased:
            return
        self.aim = id_
        nap = Step(
            name="nap",
            occurrence=sum(name == "nap" for name, _ in e.journal),
            kind="sleep",
            delay=MINUTE,
            **self._position("nap", sum(name == "nap" for name, _ in e.journal)),
        )
        self._record([(self.fence(id_, "current"), nap)], None, False)
        self.delay_execution(1, "current", None, MINUTE, None, False)
        if is_woken:
            self.retry_execution(1, None, None, "any", False)
        self.aim = None
