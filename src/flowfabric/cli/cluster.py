"""Print where the partitions of a distributed database are, and where its functions run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from textwrap import wrap

from flowfabric.cli.output import screen
from flowfabric.db import citus
from flowfabric.db.distribute import COMMAND, Cluster
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Screen, count_of

_WIDTH = 100


def cluster_facts(cluster: Cluster) -> dict[str, object]:
    """Return the facts about a cluster that `-o json` prints."""
    return {
        "partitions": [
            {"partition": one.partition, "shard": one.shard_id, "node": one.node}
            for one in cluster.locations
        ],
        "functions": [
            {"function": one.name, "delegated": _delegation(one)} for one in cluster.delegations
        ],
        "lost_delegations": list(cluster.lost),
    }


def cluster_lines(cluster: Cluster, *, with_functions: bool = False) -> Iterator[str]:
    """Yield the shards of each cluster node, and the functions that are not delegated.

    If `with_functions` is true, yield all functions instead of only these.
    """
    yield from _table(("NODE", "SHARD", "PARTITIONS"), list(_shards(cluster)))
    yield ""
    yield _functions(cluster)
    if not with_functions:
        others = [one.name for one in cluster.delegations if not one.is_delegated]
        public = [name for name in others if not name.startswith("_")]
        helpers = count_of(len(others) - len(public), "helper")
        names = ", ".join([*public, f"and {helpers}; --functions shows all functions"])
        width = screen().width or _WIDTH
        yield from wrap(f"not delegated: {names}", width, subsequent_indent="  ")
    if cluster.lost:
        yield f"not delegated as they should be: {', '.join(cluster.lost)}; type: {COMMAND}"
    if with_functions:
        rows = [(one.name, _delegation(one)) for one in cluster.delegations]
        yield ""
        yield from _table(("FUNCTION", "DELEGATED"), rows)


def cluster_summary(cluster: Cluster) -> Iterator[str]:
    """Yield the shards of each cluster node, and how many functions are delegated."""
    for node, shards in groupby(_shards(cluster), itemgetter(0)):
        listed = ", ".join(
            f"{shard} ({'partitions' if ' ' in partitions else 'partition'} {partitions})"
            for _, shard, partitions in shards
        )
        yield f"node {node}: shards {listed}"
    yield f"{_functions(cluster)}; flowfabric db status --functions lists them"


def _shards(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Yield cluster node, id and partitions of each shard of ff.execution.

    Shards without a partition are left out.
    """
    location = attrgetter("node", "shard_id")
    for (node, shard), found in groupby(sorted(cluster.locations, key=location), location):
        yield node, str(shard), " ".join(str(one.partition) for one in found)


def _table(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    columns = [
        Column(title, itemgetter(index), is_number=title == "SHARD")
        for index, title in enumerate(titles)
    ]
    return table(columns, rows, Screen())


def _functions(cluster: Cluster) -> str:
    delegated = sum(one.is_delegated for one in cluster.delegations)
    forced = sum(one.is_forced for one in cluster.delegations)
    others = len(cluster.delegations) - delegated
    return (
        f"functions: {delegated} delegated to the node of their partition ({forced} of them also "
        f"in transactions), {others} run where they are called"
    )


def _delegation(one: citus.Delegation) -> str:
    if one.is_forced:
        return "always"
    if one.is_delegated:
        return "outside transactions"
    return "no" if one.is_everywhere else "missing on other nodes"
