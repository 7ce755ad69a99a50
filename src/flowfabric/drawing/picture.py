"""What is drawn: boxes, the lines between them, and the joints at which lines meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowfabric.core.flow import EdgeInfo, FlowMember, GroupInfo
from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution

# States as they are told: what is wrong first, then what goes on, then what is over.
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

# How many members a folded box names one by one.
NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node, or several drawn as one. A node that is not stored yet has no state.

    `named` are members of a folded box worth a look, such as the failed ones.
    """

    name: str
    task: str = ""
    state: PublicState | None = None
    counts: tuple[tuple[PublicState, int], ...] = ()
    count: int = 1
    named: tuple[str, ...] = ()

    @property
    def is_folded(self) -> bool:
        return self.count > 1

    @property
    def states(self) -> tuple[tuple[PublicState, int], ...]:
        """How many members are in which state, what is wrong first."""
        if self.is_folded:
            return self.counts
        return () if self.state is None else ((self.state, 1),)

    @property
    def title(self) -> str:
        return f"{self.name} × {self.count}" if self.is_folded else self.name


@dataclass(frozen=True, slots=True)
class Line:
    """That one box waits for another; both by their places among the boxes."""

    upstream: int
    downstream: int
    group: int = 0
    resolution: Resolution | None = None


@dataclass(frozen=True, slots=True)
class Joint:
    """How the lines of one group into a box are judged. Those without a joint are all needed."""

    box: int
    group: int = 0
    policy: GroupPolicy = GroupPolicy.ALL_OF
    needed: int = 1
    total: int = 1
    state: GroupState | None = None

    @property
    def label(self) -> str:
        match self.policy:
            case GroupPolicy.ALL_OF:
                return f"all {self.total}"
            case GroupPolicy.ANY_OF:
                return f"any of {self.total}"
            case _:
                return f"{self.needed} of {self.total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A flow to be drawn. `note` says what was left out or put together."""

    title: str
    state: str = ""
    boxes: Sequence[Box]
    lines: Sequence[Line] = ()
    joints: Sequence[Joint] = ()
    note: str = ""

    @property
    def size(self) -> int:
        """How many nodes it stands for."""
        return sum(box.count for box in self.boxes)

    @property
    def states(self) -> tuple[tuple[PublicState, int], ...]:
        """How many nodes are in which state, what is wrong first."""
        return in_order(pair for box in self.boxes for pair in box.states)


def in_order(
    pairs: Iterable[tuple[PublicState, int]],
) -> tuple[tuple[PublicState, int], ...]:
    """Counts added up by state, what is wrong first."""
    found: Counter[PublicState] = Counter()
    for state, count in pairs:
        found[state] += count
    return tuple(sorted(found.items(), key=lambda pair: _RANK[pair[0]]))


def grouped(number: int) -> str:
    """A number as people read it: 10 000."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")


def words(state: PublicState) -> str:
    return state.replace("_", " ")


def picture_of(
    title: str,
    state: str,
    members: Iterable[FlowMember],
    edges: Iterable[EdgeInfo],
    groups: Iterable[GroupInfo] = (),
) -> Picture:
    """A stored flow, as it stands. Edges to members that are gone are left out."""
    boxes = []
    place = {}
    for index, member in enumerate(members):
        place[member.id] = index
        boxes.append(
            Box(
                name=member.name or short_name(member.task),
                task=member.task,
                state=member.public_state,
            )
        )
    lines = [
        Line(
            upstream=place[edge.upstream_id],
            downstream=place[edge.downstream_id],
            group=edge.group_no,
            resolution=edge.resolution,
        )
        for edge in edges
        if edge.upstream_id in place and edge.downstream_id in place
    ]
    joints = [
        Joint(
            box=place[group.downstream_id],
            group=group.group_no,
            policy=group.policy.kind,
            needed=group.policy.needed(group.n),
            total=group.n,
            state=group.state,
        )
        for group in groups
        if group.downstream_id in place
    ]
    return Picture(title=title, state=state, boxes=boxes, lines=lines, joints=joints)


def short_name(task: str) -> str:
    """The last part of a task's name."""
    return task.rpartition(".")[2] or task


def visible_joints(picture: Picture) -> dict[tuple[int, int], Joint]:
    """The joints that say something, by box and group: not that of a box that needs all lines."""
    groups: Counter[int] = Counter(box for box, _ in {(j.box, j.group) for j in picture.joints})
    return {
        (joint.box, joint.group): joint
        for joint in picture.joints
        if joint.total > 1 and (joint.policy is not GroupPolicy.ALL_OF or groups[joint.box] > 1)
    }
