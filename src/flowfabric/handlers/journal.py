"""The journal of an execution, which compares the steps of a run with those of earlier runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from flowfabric.core.states import StepKind
from flowfabric.core.step import StepRecord
from flowfabric.handlers.steps import PATCH_PREFIX, USAGE


class Mismatch(Exception):
    """The code does not match the journal at a step.

    `is_older` means that this code is older than the code that recorded the step.
    """

    def __init__(self, step: str, problem: str, *, is_older: bool = False) -> None:
        super().__init__(f"{step}: {problem}")
        self.step = step
        self.problem = problem
        self.is_older = is_older


class Entry:
    """A step that this run has begun. `record` is its record, if an earlier run recorded it."""

    __slots__ = (
        "follows",
        "is_recorded",
        "is_sequential",
        "kind",
        "name",
        "occurrence",
        "position",
        "record",
    )

    def __init__(
        self,
        name: str,
        occurrence: int,
        position: int,
        is_sequential: bool,
        kind: StepKind,
        record: StepRecord | None,
        follows: int,
    ) -> None:
        self.name = name
        self.occurrence = occurrence
        self.position = position
        self.is_sequential = is_sequential
        self.kind = kind
        self.record = record
        self.follows = follows
        self.is_recorded = record is not None


class Unbegun:
    """Recorded steps that this run has not begun, in the order of their positions.

    Reading `first` stays fast after many steps were taken out. With a plain dict, it would become
    slow.
    """

    __slots__ = ("_left", "_order")

    def __init__(self, records: Iterable[StepRecord]) -> None:
        self._order = deque(records)
        self._left = {(one.name, one.occurrence) for one in self._order}

    def take(self, key: tuple[str, int]) -> None:
        self._left.discard(key)

    @property
    def first(self) -> StepRecord | None:
        order = self._order
        while order and (order[0].name, order[0].occurrence) not in self._left:
            order.popleft()
        return order[0] if order else None


class Journal:
    """The steps that earlier runs recorded, and the position of this run.

    A step is identified by its name and by the number of earlier steps with that name. Steps that
    the handler itself runs one after another must also come in the recorded order. Concurrent
    steps (`asyncio.gather`) share a position, because they have no order.
    """

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        in_order = sorted(records, key=lambda one: one.position)
        self._records = {(one.name, one.occurrence): one for one in in_order}
        # How many entries there were when the run began, and how many there are now.
        self.base = self.recorded_count = len(self._records)
        steps = [one for one in in_order if not one.name.startswith(PATCH_PREFIX)]
        # A run may skip a sleep, a reading of the clock or an open wait, for example when a branch
        # loses a race. It may skip a report of usage, too: a branch may report other amounts.
        self._unreached = Unbegun(
            one
            for one in steps
            if (one.kind in (StepKind.STEP, StepKind.FAILURE) or one.taken_as is not None)
            and (one.is_sequential or not one.name.startswith(USAGE))
        )
        # If an earlier run took the new code of a patch, this run must reach that patch, too.
        self._patched = Unbegun(
            one for one in in_order if one.name.startswith(PATCH_PREFIX) and one.value == b"true"
        )
        self._unbegun = Unbegun(steps)
        self._sequential = Unbegun(one for one in steps if one.is_sequential)
        self._occurrences: dict[str, int] = {}
        # How many steps this run has begun.
        self.count = 0
        self._next = 0
        # Whether concurrent steps have taken the next position.
        self._is_beside = False
        # The highest position known to be recorded. Every step stores it, so that a check of the
        # journal can find a missing step.
        self._last = -1

    def begin(self, name: str, kind: StepKind, *, is_own: bool, is_alone: bool) -> Entry:
        """Begin a step and return its entry.

        `is_own` says that the handler itself runs the step, not one of its branches. `is_alone`
        says that no other step is in flight.
        """
        occurrence = self._occurrences.get(name, 0)
        record = self._records.get((name, occurrence))
        position = self._next
        if is_own and self._is_beside:
            position += 1
        if record is None:
            if is_own:
                self._check_patches(position)
                self._check_order(name, position)
        else:
            self._check_record(record, kind, is_own)
            position = max(position, record.position)
            for unbegun in (self._unreached, self._sequential, self._unbegun):
                unbegun.take((name, occurrence))
        self._occurrences[name] = occurrence + 1
        self.count += 1
        self._next = position + 1 if is_own else position
        self._is_beside = not is_own
        follows = self._last
        if record is not None:
            self._last = max(follows, record.position)
        return Entry(name, occurrence, position, is_own and is_alone, kind, record, follows)

    def begin_patch(self, name: str, *, is_own: bool, is_alone: bool, may_precede: bool) -> Entry:
        """Begin the decision about a patch.

        The decision has no position of its own, because newer code can add it between two recorded
        steps. If `may_precede` is true, a patch that an earlier run took may directly follow it.
        """
        occurrence = self._occurrences.get(name, 0)
        self._occurrences[name] = occurrence + 1
        record = self._records.get((name, occurrence))
        self._patched.take((name, occurrence))
        position = self._next + (is_own and self._is_beside)
        if record is None and is_own:
            self._check_patches(position - may_precede)
        is_sequential = is_own and is_alone
        return Entry(name, occurrence, position, is_sequential, StepKind.STEP, record, self._last)

    def begin_child(self, *, is_own: bool) -> None:
        """Refuse a child if this run skipped a patch that an earlier run took before the child."""
        if is_own:
            self._check_patches(self._next + self._is_beside)

    def takes_patch_at(self, position: int) -> bool:
        """Tell whether an earlier run took a patch that this run has not reached.

        Only patches at `position` or before count. Patches that concurrent branches took do not
        count, because they have no order.
        """
        patch = self._patched.first
        return patch is not None and patch.is_sequential and patch.position <= position

    @property
    def is_replaying(self) -> bool:
        """Whether an earlier run has recorded steps that this run has not begun."""
        return self._unbegun.first is not None

    @property
    def is_catching_up(self) -> bool:
        """Whether there are recorded steps that this run must reach and has not begun yet.

        Sleeps and open waits of concurrent branches do not count, because a run can skip them if
        their branch loses a race.
        """
        return self._unreached.first is not None or self._sequential.first is not None

    def recorded(self, entry: Entry) -> None:
        """Remember that a step of this run was recorded."""
        if not entry.is_recorded:
            entry.is_recorded = True
            self.recorded_count += 1
        if not entry.name.startswith(PATCH_PREFIX):
            self._last = max(self._last, entry.position)

    def end(self, how: str) -> None:
        """Refuse to end the handler before it has begun every recorded step.

        The handler must also have reached every patch whose new code an earlier run took. Only
        sleeps, readings of the clock, open waits, and the reports of usage that concurrent branches
        made may be left out.
        """
        if (missing := self._unreached.first or self._patched.first) is not None:
            raise self._mismatch(missing, f"was recorded, but the handler {how} without it")

    def _check_patches(self, position: int) -> None:
        """Refuse to begin a step, a child or a patch at `position` if this run skipped a patch.

        A patch is skipped if an earlier run took it at `position` or before, and this run has not
        reached it.
        """
        patch = self._patched.first
        if patch is not None and self.takes_patch_at(position):
            raise _older(patch)

    def _mismatch(self, record: StepRecord, problem: str) -> Mismatch:
        patch = self._patched.first
        # Concurrent steps share a position, so this step may come after the patch.
        if patch is not None and patch.position <= record.position + (not record.is_sequential):
            return _older(patch)
        return Mismatch(record.name, problem)

    def _check_order(self, name: str, position: int) -> None:
        """Refuse to begin a new step at `position` if this run skipped a recorded step.

        A step is skipped if an earlier run recorded it at `position` or before, and this run has
        not begun it. Steps of concurrent branches do not count, because they have no order.
        """
        first = self._sequential.first
        if first is not None and first.position <= position:
            raise self._mismatch(first, f"the code runs {_short(name)} where this was recorded")

    def _check_record(self, record: StepRecord, kind: StepKind, is_own: bool) -> None:
        recorded = StepKind.STEP if record.kind is StepKind.FAILURE else record.kind
        if recorded is not kind:
            raise self._mismatch(
                record, f"recorded as a {record.kind}, but the code makes it a {kind}"
            )
        if not (is_own and record.is_sequential):
            return
        first = self._sequential.first
        if first is not None and first is not record:
            raise self._mismatch(
                first, f"the code runs {_short(record.name)} where this was recorded"
            )


def _older(patch: StepRecord) -> Mismatch:
    problem = "an earlier run took the new code of this patch, which this handler does not have"
    return Mismatch(patch.name, problem, is_older=True)


def _short(name: str) -> str:
    """Return a name in quotes, cut to 40 characters."""
    return repr(name if len(name) <= 40 else f"{name[:39]}…")
