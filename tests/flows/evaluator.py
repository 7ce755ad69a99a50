"""What becomes of a graph: written from the rules for groups, without a look at the SQL.

    graph = Graph(size=4, edges=[Edge(0, 3), Edge(1, 3), Edge(2, 3, group=1)], rules={...})
    simulation = Simulation(graph)
    simulation.end({0: "success", 1: "failed"})     # both at once, and all that follows
    simulation.outcomes, simulation.groups, simulation.ready

    lives = Lives(graph)                        # the same, where ended nodes are replayed
    lives.end(0, "success", b"1"); lives.replay(0); lives.start(3)

A `Simulation` does what an engine without limits, locks and crashes would do: it resolves every
end at once. Where siblings are cancelled the order of ends matters, and a simulation is one order.
`audit` asks less of a history in any order: was everything in it allowed, and is nothing missing?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

SUCCESS, SKIPPED, CANCELLED = "success", "skipped", "cancelled"
PENDING, SATISFIED, IMPOSSIBLE = "pending", "satisfied", "impossible"


@dataclass(frozen=True, slots=True)
class Edge:
    upstream: int
    downstream: int
    group: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.downstream, self.group


@dataclass(frozen=True, slots=True)
class Rule:
    """When a group is satisfied, and whether those that are not needed any more are cancelled."""

    policy: str = "all_of"
    k: int | None = None
    cancels: bool = False

    def needed(self, n: int) -> int:
        return {"all_of": n, "any_of": 1}.get(self.policy, self.k or 0)

    def decide(self, n: int, succeeded: int, lost: int) -> str:
        k = self.needed(n)
        if n > 0 and succeeded >= k:
            return SATISFIED
        return IMPOSSIBLE if lost > n - k else PENDING


@dataclass(frozen=True)
class Graph:
    """Nodes are numbers; an edge leads from a lower one to a higher one."""

    size: int
    edges: tuple[Edge, ...]
    rules: Mapping[tuple[int, int], Rule] = field(default_factory=dict)

    @cached_property
    def out(self) -> dict[int, list[int]]:
        """The edges that leave each node."""
        out: dict[int, list[int]] = {node: [] for node in range(self.size)}
        for at, edge in enumerate(self.edges):
            out[edge.upstream].append(at)
        return out

    @cached_property
    def members(self) -> dict[tuple[int, int], list[int]]:
        """The upstreams of each group, one for each edge."""
        members: dict[tuple[int, int], list[int]] = {}
        for edge in self.edges:
            members.setdefault(edge.key, []).append(edge.upstream)
        return members

    @cached_property
    def keys_of(self) -> dict[int, list[tuple[int, int]]]:
        """The groups of each node."""
        keys: dict[int, list[tuple[int, int]]] = {node: [] for node in range(self.size)}
        for key in self.members:
            keys[key[0]].append(key)
        return keys

    @cached_property
    def fed_by(self) -> dict[int, set[tuple[int, int]]]:
        """The groups that each node counts in."""
        return {
            node: {self.edges[at].key for at in edges} for node, edges in self.out.items()
        }  # fmt: skip

    def rule(self, key: tuple[int, int]) -> Rule:
        return self.rules.get(key, Rule())

    def __str__(self) -> str:
        lines = [f"{self.size} nodes"]
        for key, members in sorted(self.members.items()):
            rule = self.rule(key)
            cancels = ", cancels the rest" if rule.cancels else ""
            k = f" {rule.k}" if rule.k else ""
            lines.append(f"  {key[0]}.{key[1]}: {rule.policy}{k} of {members}{cancels}")
        return "\n".join(lines)


@dataclass(slots=True)
class Group:
    n: int
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    state: str = PENDING

    def count(self, outcome: str) -> None:
        if outcome == SUCCESS:
            self.succeeded += 1
        elif outcome == SKIPPED:
            self.skipped += 1
        else:
            self.failed += 1


class Simulation:
    """One order of ends, each with all that follows from it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outcomes: dict[int, str] = {}
        self.groups = {key: Group(len(members)) for key, members in graph.members.items()}
        # those whose cancellation followed from a group
        self.dropped: set[int] = set()
        self.retained: set[int] = set()

    @property
    def ready(self) -> set[int]:
        return {
            node
            for node in range(self.graph.size)
            if node not in self.outcomes
            and all(self.groups[key].state == SATISFIED for key in self.graph.keys_of[node])
        }

    @property
    def waiting(self) -> set[int]:
        return set(range(self.graph.size)) - self.outcomes.keys() - self.ready

    def end(self, ends: Mapping[int, str]) -> None:
        """These end together. One that has ended already stays as it is."""
        level = {node: outcome for node, outcome in ends.items() if node not in self.outcomes}
        while level:
            self.outcomes |= level
            decided = self._count(level)
            level = dict.fromkeys(self._hopeless(decided), SKIPPED)
            level |= dict.fromkeys(self._siblings(decided, level), CANCELLED)

    def _count(self, ended: Mapping[int, str]) -> list[tuple[int, int]]:
        """Each edge is counted once, and a group is decided once."""
        touched: dict[tuple[int, int], None] = {}
        for node, outcome in ended.items():
            for at in self.graph.out[node]:
                key = self.graph.edges[at].key
                self.groups[key].count(outcome)
                touched[key] = None
        decided = []
        for key in touched:
            group = self.groups[key]
            if group.state != PENDING:
                continue
            group.state = self.graph.rule(key).decide(
                group.n, group.succeeded, group.failed + group.skipped
            )
            if group.state != PENDING:
                decided.append(key)
        return decided

    def _hopeless(self, decided: Iterable[tuple[int, int]]) -> set[int]:
        return {
            node
            for node, number in decided
            if self.groups[node, number].state == IMPOSSIBLE and node not in self.outcomes
        }

    def _siblings(self, decided: Iterable[tuple[int, int]], skipped: Mapping[int, str]) -> set[int]:
        """Who is not needed any more: no group that is still open counts on it."""
        dropped = set()
        for key in decided:
            if not self.graph.rule(key).cancels:
                continue
            for node in self.graph.members[key]:
                if node in self.outcomes or node in skipped:
                    continue
                if any(self.groups[other].state == PENDING for other in self.graph.fed_by[node]):
                    self.retained.add(node)
                else:
                    dropped.add(node)
        self.dropped |= dropped
        return dropped


class Lives:
    """A simulation in which nodes that have ended may run again, and what each node is given.

    Edge by edge: one that was satisfied stays so, and so does a group that was. Only an edge that
    was made impossible is open again, when its upstream is replayed, or its downstream that
    waited in vain. Siblings are not cancelled here.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outcomes: dict[int, str] = {}
        self.edges: list[str] = [PENDING] * len(graph.edges)
        self.groups = dict.fromkeys(graph.members, PENDING)
        # which edges counted when a group was satisfied
        self.counted: dict[tuple[int, int], frozenset[int]] = {}
        self.results: dict[int, bytes] = {}
        self.given: dict[int, dict[int, bytes]] = {}
        self._into: dict[tuple[int, int], list[int]] = {key: [] for key in graph.members}
        for at, edge in enumerate(graph.edges):
            self._into[edge.key].append(at)

    @property
    def ready(self) -> set[int]:
        return {
            node
            for node in range(self.graph.size)
            if node not in self.outcomes
            and all(self.groups[key] == SATISFIED for key in self.graph.keys_of[node])
        }

    def start(self, node: int) -> dict[int, bytes]:
        """What each edge brings. What the first start saw every other one sees."""
        if node not in self.given:
            self.given[node] = {
                at: self.results[self.graph.edges[at].upstream]
                for key in self.graph.keys_of[node]
                for at in self.counted[key]
            }
        return self.given[node]

    def end(self, node: int, outcome: str, result: bytes = b"") -> None:
        if outcome == SUCCESS:
            # also for those that were promised an earlier one and have not started
            self.results[node] = result
        level = {node: outcome}
        while level:
            self.outcomes |= level
            touched = set()
            for ended, how in level.items():
                for at in self.graph.out[ended]:
                    if self.edges[at] == PENDING:
                        self.edges[at] = SATISFIED if how == SUCCESS else IMPOSSIBLE
                        touched.add(self.graph.edges[at].key)
            self._decide(touched)
            level = {
                key[0]: SKIPPED
                for key in touched
                if self.groups[key] == IMPOSSIBLE and key[0] not in self.outcomes
            }

    def replay(self, node: int) -> None:
        left = [node]
        while left:
            for one in left:
                del self.outcomes[one]
            touched = self._open(
                at for one in left for at in self.graph.out[one] if self.edges[at] == IMPOSSIBLE
            )
            left = [
                down
                for down in {key[0] for key in touched}
                if self.outcomes.get(down) == SKIPPED
                and all(self.groups[key] != IMPOSSIBLE for key in self.graph.keys_of[down])
            ]
        self._open(
            at
            for key in self.graph.keys_of[node]
            for at in self._into[key]
            if self.groups[key] != SATISFIED and self.edges[at] == IMPOSSIBLE
        )

    def _open(self, edges: Iterable[int]) -> set[tuple[int, int]]:
        touched = set()
        for at in list(edges):
            self.edges[at] = PENDING
            touched.add(self.graph.edges[at].key)
        for key in touched:
            if self.groups[key] == IMPOSSIBLE:
                self.groups[key] = PENDING
        self._decide(touched)
        return touched

    def _decide(self, keys: Iterable[tuple[int, int]]) -> None:
        for key in keys:
            if self.groups[key] != PENDING:
                continue
            states = [self.edges[at] for at in self._into[key]]
            self.groups[key] = self.graph.rule(key).decide(
                len(states), states.count(SATISFIED), states.count(IMPOSSIBLE)
            )
            if self.groups[key] == SATISFIED:
                self.counted[key] = frozenset(
                    at for at in self._into[key] if self.edges[at] == SATISFIED
                )


def settle(graph: Graph, given: Mapping[int, str]) -> Simulation:
    """What follows if these nodes end so, whatever the order, and nobody cancels a sibling."""
    simulation = Simulation(
        Graph(
            graph.size,
            graph.edges,
            {key: Rule(rule.policy, rule.k) for key, rule in graph.rules.items()},
        )
    )
    simulation.end(given)
    return simulation


@dataclass(frozen=True, slots=True)
class Ended:
    """One end in a history: `by` is ours (somebody asked for it), skip or sibling."""

    node: int
    outcome: str
    by: str
    # it ran: its groups must have been satisfied before
    ran: bool = False


def audit(graph: Graph, history: Sequence[Ended]) -> list[str]:
    """What is wrong with a history of ends, in the order they were written down.

    What the engine knows when it acts is at most what is written down before: a group may be open
    to it that is decided here, never the other way round.
    """
    problems = []
    known = _Knowledge(graph)
    for end in history:
        states = {key: known.state(key) for key in graph.keys_of[end.node]}
        if end.node in known.outcomes:
            problems.append(f"{end.node} ended twice")
        if end.ran and set(states.values()) - {SATISFIED}:
            problems.append(f"{end.node} ran before its groups were satisfied: {states}")
        if end.by == "skip" and IMPOSSIBLE not in states.values():
            problems.append(f"{end.node} was skipped without need: {states}")
        if end.by == "sibling":
            fed = {key: known.state(key) for key in graph.fed_by[end.node]}
            if PENDING in fed.values():
                problems.append(f"{end.node} was cancelled though it is needed: {fed}")
            if not any(graph.rule(key).cancels for key in fed):
                problems.append(f"{end.node} was cancelled by no group")
        known.outcomes[end.node] = end.outcome
    return problems


def unneeded(graph: Graph, outcomes: Mapping[int, str]) -> set[int]:
    """Who must have been cancelled by now, in whatever order the groups were decided."""
    known = _Knowledge(graph, dict(outcomes))
    return {
        node
        for node, fed in graph.fed_by.items()
        if node not in outcomes
        and fed
        and all(known.state(key) != PENDING and graph.rule(key).cancels for key in fed)
    }


@dataclass(slots=True)
class _Knowledge:
    """Groups as the ends so far decide them."""

    graph: Graph
    outcomes: dict[int, str] = field(default_factory=dict)

    def state(self, key: tuple[int, int]) -> str:
        group = self.count(key)
        return self.graph.rule(key).decide(group.n, group.succeeded, group.failed + group.skipped)

    def count(self, key: tuple[int, int]) -> Group:
        members = self.graph.members[key]
        group = Group(len(members))
        for node in members:
            if node in self.outcomes:
                group.count(self.outcomes[node])
        return group


def final_groups(graph: Graph, outcomes: Mapping[int, str]) -> dict[tuple[int, int], Group]:
    """Counters and states when these have ended."""
    known = _Knowledge(graph, dict(outcomes))
    groups = {}
    for key in graph.members:
        groups[key] = known.count(key)
        groups[key].state = known.state(key)
    return groups


# Random graphs


def random_graph(dice: Random, size: int, *, cancels: bool, density: float = 1.4) -> Graph:
    """Mixed policies, several groups a node, now and then two edges between two nodes."""
    edges: list[Edge] = []
    reach = dice.choice([3, 8, size])
    shape = dice.random()
    for node in range(1, size):
        if shape < 0.15:
            # wide: a few sources, one sink
            ups = list(range(node)) if node == size - 1 else []
        else:
            number = min(node, dice.choices([0, 1, 2, 3, 5], [2, 5, 4, 2, 1])[0])
            ups = dice.sample(range(max(0, node - reach), node), min(number, reach, node))
        groups = dice.choices([1, 2, 3], [6, 3, 1])[0]
        for up in ups:
            edges.append(Edge(up, node, dice.randrange(groups)))
            if dice.random() < 0.05:
                edges.append(Edge(up, node, dice.randrange(groups)))
        if len(edges) > size * density + 2 and cancels:
            break
    edges = list(dict.fromkeys(edges))
    graph = Graph(size, tuple(edges))
    rules = {}
    for key, members in graph.members.items():
        drops = cancels and dice.random() < 0.6
        kind = dice.choice(["all_of", "all_of", "any_of", "quorum"])
        if kind == "all_of":
            rules[key] = Rule()
        elif kind == "any_of":
            rules[key] = Rule("any_of", None, drops)
        else:
            rules[key] = Rule("quorum", dice.randint(1, len(members)), drops)
    return Graph(size, tuple(edges), rules)
