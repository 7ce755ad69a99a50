"""Register the gates of quotas and budgets, so that submissions can name them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from flowfabric.client.outcomes import refusal
from flowfabric.core.limit import Budget, Gate, Limit
from flowfabric.db import functions
from flowfabric.db.session import Database

# A client remembers at most this many gates; then it forgets them and registers them again.
_MOST_KNOWN = 100_000
# The engine accepts at most this many gates in one call.
_AT_ONCE = 1000


class Gates:
    """Registers gates, and remembers which gates this client has registered.

    A client registers each gate once, even if the database has the gate already, because the
    limits in the code may have changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: set[tuple[int, int]] = set()

    def forget(self) -> None:
        self._known.clear()

    async def register(self, partition: int, gates: Mapping[int, Gate]) -> None:
        """Register gates in one partition. Skip gates that this client has registered before.

        `gates` maps the id of each gate to the gate.
        """
        new = [(id, gate) for id, gate in gates.items() if (partition, id) not in self._known]
        for start in range(0, len(new), _AT_ONCE):
            await self._register(partition, new[start : start + _AT_ONCE])

    async def declare(
        self, namespace: str, limits: Iterable[Limit | Budget], *, partition: int = 0
    ) -> None:
        """Declare the given quotas and budgets, except budgets with keys.

        An app calls this when it connects. A budget with keys is declared later, for one key at a
        time, when a submission names a new key.
        """
        gates = [
            Gate(namespace, one) for one in limits if isinstance(one, Limit) or not one.is_keyed
        ]
        await self.register(partition, {gate.id: gate for gate in gates})

    async def _register(self, partition: int, gates: list[tuple[int, Gate]]) -> None:
        rows = await self._database.call(
            functions.REGISTER_GATES,
            partition_key=partition,
            namespace=gates[0][1].namespace,
            gates=json.dumps([gate.declaration() for _, gate in gates]),
            registered_by=None,
        )
        for row in rows:
            if row["outcome"] != "registered":
                raise refusal(row["outcome"], row["detail"])
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update((partition, id) for id, _ in gates)
