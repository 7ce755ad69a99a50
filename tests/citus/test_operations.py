"""Every operation of the client and every reading on a distributed database, in all partitions."""

from __future__ import annotations

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.db import distribute
from flowfabric.doctor import examine

from .conftest import PARTITIONS

ROUNDS = 4


async def test_every_operation_works(cluster_database, root_of_benchmarks):
    """Those that benchmarks/operations.py times, each prepared and done in some partitions."""
    from operations import OPERATIONS, Bench

    class Everywhere(Bench):
        async def waiting(self, **options):
            self.priority += 1
            submission = Submission(
                id=mint(PARTITIONS),
                route=Route("default", self.lane, "bench.work"),
                payload=b"null",
                priority=self.priority,
                **options,
            )
            return (await self.client.executions.submit(submission)).id

    failed = {}
    async with FlowFabric(cluster_database.url) as client:
        bench = Everywhere(client)
        for name, prepare, call in OPERATIONS:
            bench.begin(name)
            for _ in range(ROUNDS):
                try:
                    # The same method, on this class.
                    given = await getattr(bench, prepare.__name__, lambda p=prepare: p(bench))()
                    await call(bench, given)
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
    assert failed == {}


async def test_doctor_reads_a_distributed_database(cluster_database, coordinator):
    report = await examine(coordinator, is_throwaway=True)

    assert [one.problem for one in report.findings] == []
    assert report.cluster == await distribute.look(coordinator)
    assert [one.partition for one in report.cluster.locations] == list(range(PARTITIONS))
