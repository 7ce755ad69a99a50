"""The evaluator itself: rows that were worked out by hand."""

from __future__ import annotations

from random import Random

import pytest

from .evaluator import Edge, Ended, Graph, Rule, Simulation, audit, random_graph, settle, unneeded


@pytest.mark.parametrize(
    ("rule", "n", "succeeded", "lost", "state"),
    [
        (Rule("quorum", 3), 5, 3, 0, "satisfied"),
        (Rule("quorum", 3), 5, 2, 2, "pending"),
        (Rule("quorum", 3), 5, 2, 3, "impossible"),
        (Rule("quorum", 3), 5, 0, 3, "impossible"),
        (Rule("quorum", 3), 5, 3, 2, "satisfied"),
        (Rule("quorum", 3), 2, 0, 0, "impossible"),
        (Rule("any_of"), 3, 0, 3, "impossible"),
        (Rule("any_of"), 3, 0, 2, "pending"),
        (Rule("any_of"), 3, 1, 2, "satisfied"),
        (Rule(), 3, 3, 0, "satisfied"),
        (Rule(), 3, 2, 0, "pending"),
        (Rule(), 3, 2, 1, "impossible"),
        (Rule(), 0, 0, 0, "pending"),
    ],
)
def test_a_group_is_decided_by_its_counters(rule, n, succeeded, lost, state):
    assert rule.decide(n, succeeded, lost) == state


def test_a_skip_goes_on_down_a_chain():
    simulation = Simulation(Graph(5, tuple(Edge(n, n + 1) for n in range(4))))
    simulation.end({0: "failed"})
    assert simulation.outcomes == {
        0: "failed",
        1: "skipped",
        2: "skipped",
        3: "skipped",
        4: "skipped",
    }
    assert (simulation.groups[1, 0].failed, simulation.groups[2, 0].skipped) == (1, 1)


def test_who_is_not_needed_is_cancelled_and_counts_as_failed():
    graph = Graph(4, tuple(Edge(n, 3) for n in range(3)), {(3, 0): Rule("any_of", None, True)})
    simulation = Simulation(graph)
    simulation.end({0: "success"})
    assert simulation.outcomes == {0: "success", 1: "cancelled", 2: "cancelled"}
    assert (simulation.groups[3, 0].state, simulation.groups[3, 0].failed) == ("satisfied", 2)
    assert simulation.ready == {3}


def test_who_is_needed_elsewhere_is_retained():
    graph = Graph(
        4, (Edge(0, 2), Edge(1, 2), Edge(1, 3)), {(2, 0): Rule("any_of", None, True)}
    )  # fmt: skip
    simulation = Simulation(graph)
    simulation.end({0: "success"})
    assert simulation.outcomes == {0: "success"}
    assert simulation.retained == {1}


def test_without_cancels_the_order_does_not_matter():
    for number in range(200):
        dice = Random(number)
        graph = random_graph(dice, dice.randint(2, 30), cancels=False)
        given = {node: dice.choice(["success", "success", "failed"]) for node in range(graph.size)}
        simulation, ours = Simulation(graph), {}
        while simulation.ready:
            node = dice.choice(sorted(simulation.ready))
            ours[node] = given[node]
            simulation.end({node: given[node]})
        assert not simulation.waiting
        assert settle(graph, ours).outcomes == simulation.outcomes
        assert settle(graph, ours).groups == simulation.groups


def test_an_audit_notices_what_was_not_allowed():
    graph = Graph(3, (Edge(0, 2), Edge(1, 2)), {(2, 0): Rule("any_of", None, True)})
    fine = [Ended(0, "success", "ours", True), Ended(1, "cancelled", "sibling")]
    assert audit(graph, [*fine, Ended(2, "success", "ours", True)]) == []
    assert audit(graph, [Ended(2, "success", "ours", True)])
    assert audit(graph, [Ended(1, "cancelled", "sibling")])
    assert audit(graph, [fine[0], fine[0]])
    assert audit(graph, [fine[0], Ended(2, "skipped", "skip")])
    assert unneeded(graph, {0: "success"}) == {1}
