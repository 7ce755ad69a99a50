"""A picture of a flow: boxes, lines between them, and joints where lines meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing.times import short

if TYPE_CHECKING:
    from flowfabric.core.flow import EdgeInfo, FlowMember, GroupInfo

# The order of states in a summary: failures first, then unfinished, then ended.
ORDER = (
    PublicState.FAILED,
    PublicState.EXPIRED,
    PublicState.ACTIVE,
    PublicState.SUSPENDED,
    PublicState.RATE_LIMITED,
    PublicState.DELAYED,
    PublicState.RESUMABLE,
    PublicState.WAITING,
    PublicState.WAITING_CHILDREN,
    PublicState.CANCELLED,
    PublicState.SKIPPED,
    PublicState.COMPLETED,
)
_RANK = {state: rank for rank, state in enumerate(ORDER)}

# The colours of states on a terminal.
COLOURS = {
    PublicState.ACTIVE: "cyan",
    PublicState.COMPLETED: "green",
    PublicState.FAILED: "red",
    PublicState.EXPIRED: "red",
    PublicState.DELAYED: "yellow",
    PublicState.SUSPENDED: "yellow",
    PublicState.RATE_LIMITED: "yellow",
}

# The signs of states in a tree, and their ASCII forms.
SIGNS = {
    PublicState.COMPLETED: ("✔", "+"),
    PublicState.FAILED: ("✘", "x"),
    PublicState.EXPIRED: ("✘", "x"),
    PublicState.ACTIVE: ("▶", ">"),
    PublicState.SUSPENDED: ("‖", "="),
    PublicState.RESUMABLE: ("▷", ">"),
    PublicState.DELAYED: ("◷", "~"),
    PublicState.RATE_LIMITED: ("≈", "~"),
    PublicState.WAITING: ("○", "o"),
    PublicState.WAITING_CHILDREN: ("◌", "."),
    PublicState.CANCELLED: ("⊘", "-"),
    PublicState.SKIPPED: ("»", "-"),
}

# How many failed members a folded box names.
NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node, or several nodes drawn as one. A node that is not stored yet has no state.

    `named` contains the names of up to five failed or expired members of a folded box. `took` is
    the time from the start of a node to its end or until now; for several nodes, the longest time.
    """

    name: str
    task: str = ""
    state: PublicState | None = None
    counts: tuple[tuple[PublicState, int], ...] = ()
    count: int = 1
    named: tuple[str, ...] = ()
    took: timedelta | None = None
    # The address that a click on the box opens, on a page.
    link: str = ""

    @property
    def is_folded(self) -> bool:
        return self.count > 1

    @property
    def states(self) -> tuple[tuple[PublicState, int], ...]:
        """The number of members per state, failures first."""
        if self.is_folded:
            return self.counts
        return () if self.state is None else ((self.state, 1),)

    @property
    def duration(self) -> str:
        return "" if self.took is None else short(self.took)

    @property
    def title(self) -> str:
        return f"{self.name} × {self.count}" if self.is_folded else self.name


@dataclass(frozen=True, slots=True)
class Line:
    """A dependency between two boxes, given by their indexes."""

    upstream: int
    downstream: int
    group: int = 0
    resolution: Resolution | None = None


@dataclass(frozen=True, slots=True)
class Joint:
    """The mark above a box where the lines of one edge group meet.

    It says how many lines of the group are needed. If a line does not end at a joint, it is needed.
    """

    box: int
    group: int = 0
    group_policy: GroupPolicy = GroupPolicy.ALL_OF
    needed: int = 1
    total: int = 1
    state: GroupState | None = None

    @property
    def label(self) -> str:
        match self.group_policy:
            case GroupPolicy.ALL_OF:
                return f"all {self.total}"
            case GroupPolicy.ANY_OF:
                return f"any of {self.total}"
            case _:
                return f"{self.needed} of {self.total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A flow to draw. `note` says what was omitted or merged."""

    title: str
    state: str = ""
    boxes: Sequence[Box]
    lines: Sequence[Line] = ()
    joints: Sequence[Joint] = ()
    note: str = ""

    @property
    def size(self) -> int:
        """The number of nodes of the flow."""
        return sum(box.count for box in self.boxes)

    @property
    def states(self) -> tuple[tuple[PublicState, int], ...]:
        """The number of nodes per state, failures first."""
        return in_order(pair for box in self.boxes for pair in box.states)


def in_order(
    pairs: Iterable[tuple[PublicState, int]],
) -> tuple[tuple[PublicState, int], ...]:
    """Add up the counts of each state. Failures come first."""
    found: Counter[PublicState] = Counter()
    for state, count in pairs:
        found[state] += count
    return tuple(sorted(found.items(), key=lambda pair: _RANK[pair[0]]))


def grouped(number: int) -> str:
    """Return a number with grouped digits: 10 000."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")


def words(state: PublicState) -> str:
    return state.replace("_", " ")


def picture_of(
    title: str,
    state: str,
    members: Iterable[FlowMember],
    edges: Iterable[EdgeInfo],
    groups: Iterable[GroupInfo] = (),
    *,
    now: datetime | None = None,
    link: Callable[[FlowMember], str] = lambda _: "",
) -> Picture:
    """Return the picture of a stored flow. The edges of trimmed members are omitted.

    If `now` is None, a node that has not ended has no duration. `link` returns the address that a
    click on a member opens.
    """
    boxes = []
    indexes = {}
    for index, member in enumerate(members):
        indexes[member.id] = index
        boxes.append(
            Box(
                name=member.name or short_name(member.task),
                task=member.task,
                state=member.public_state,
                took=_took(member, now),
                link=link(member),
            )
        )
    lines = [
        Line(
            upstream=indexes[edge.upstream_id],
            downstream=indexes[edge.downstream_id],
            group=edge.group_no,
            resolution=edge.resolution,
        )
        for edge in edges
        if edge.upstream_id in indexes and edge.downstream_id in indexes
    ]
    joints = [
        Joint(
            box=indexes[group.downstream_id],
            group=group.group_no,
            group_policy=group.group_policy.kind,
            needed=group.group_policy.needed(group.n),
            total=group.n,
            state=group.state,
        )
        for group in groups
        if group.downstream_id in indexes
    ]
    return Picture(title=title, state=state, boxes=boxes, lines=lines, joints=joints)


def _took(member: FlowMember, now: datetime | None) -> timedelta | None:
    until = member.terminal_at or now
    if member.started_at is None or until is None:
        return None
    return max(until - member.started_at, timedelta(0))


def short_name(task: str) -> str:
    """Return the last part of a task's name."""
    return task.rpartition(".")[2] or task


def visible_joints(picture: Picture) -> dict[tuple[int, int], Joint]:
    """Return the joints to draw, by box and group.

    A group of one line gets no joint. If a box has only one group and needs all lines of the group,
    the box gets no joint.
    """
    groups: Counter[int] = Counter(box for box, _ in {(j.box, j.group) for j in picture.joints})
    return {
        (joint.box, joint.group): joint
        for joint in picture.joints
        if joint.total > 1
        and (joint.group_policy is not GroupPolicy.ALL_OF or groups[joint.box] > 1)
    }
