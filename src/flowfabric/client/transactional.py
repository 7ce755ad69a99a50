"""Find the target database and the routes for a submit inside the caller's transaction.

`submissions` encodes the submit, and `via` sends it on the caller's connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowfabric.client.lanes import Lanes
from flowfabric.client.partitions import ask_any
from flowfabric.client.submissions import Destination
from flowfabric.core.errors import NotOverHttp
from flowfabric.core.execution import DEFAULT_NAMESPACE, Submission
from flowfabric.db import functions
from flowfabric.db.session import Database


class Transactional:
    """Find the destination (database and routes) for submissions on a caller's connection."""

    def __init__(self, database: Database, lanes: Lanes) -> None:
        self._database = database
        self._lanes = lanes
        self._identity: str | None = None

    async def find_destination(
        self, submissions: Sequence[Submission], *, anew: bool = False
    ) -> Destination:
        """Register the routes and gates of submissions, and return the destination.

        Routes and gates are registered on our own connection, so a rollback of the caller's
        transaction does not remove them. If `anew` is true, the client's cache of routes and gates
        is cleared first.
        """
        if anew:
            self._lanes.forget()
            self._identity = None
        for submission in submissions:
            submission.check()
        await self._lanes.prepare(submissions)
        return Destination(self._lanes.known, await self.identity())

    async def find_own_destination(
        self, submissions: Sequence[Submission], *, anew: bool = False
    ) -> Destination:
        """Return the destination for submissions on our own connection. On this connection, the
        engine need not check the name of the database.
        """
        if anew:
            self._lanes.forget()
        for submission in submissions:
            submission.check()
        await self._lanes.prepare(submissions)
        return Destination(self._lanes.known)

    async def identity(self) -> str:
        """Return the unique name of our database."""
        if self._database.is_remote:
            raise NotOverHttp(
                "A call in your own transaction (via=) is not offered over HTTP.", operation="via"
            )
        if self._identity is None:
            partitions = await self._database.partitions.all()
            self._identity = await ask_any(partitions, self._read_identity)
        return self._identity

    async def _read_identity(self, partition: int) -> str:
        rows = await self._database.call(
            functions.SUBMIT_JSON,
            partition_key=partition,
            namespace=DEFAULT_NAMESPACE,
            items="[]",
            database=None,
        )
        return str(json.loads(rows[0]["submit_json"])["database"])
