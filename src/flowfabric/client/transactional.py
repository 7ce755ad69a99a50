"""Transactional submits join the caller's transaction on the caller's connection. This module finds
their target database and routes; `submissions` encodes them and `app.via` sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowfabric.client.lanes import Lanes
from flowfabric.client.submissions import Place
from flowfabric.core.execution import DEFAULT_NAMESPACE, Submission
from flowfabric.db import functions
from flowfabric.db.session import Database


class Transactional:
    """Find the place for submissions on a caller's connection."""

    def __init__(self, database: Database, lanes: Lanes) -> None:
        self._database = database
        self._lanes = lanes
        self._identity: str | None = None

    async def place(self, submissions: Sequence[Submission], *, anew: bool = False) -> Place:
        """Register the routes of submissions on our connection, so that a rollback of the caller's
        transaction does not undo it. `anew` registers all known routes again."""
        if anew:
            self._lanes.forget()
            self._identity = None
        for submission in submissions:
            submission.check()
        for route in {submission.route for submission in submissions}:
            await self._lanes.register(route)
        return Place(self._lanes.known, await self.identity())

    async def identity(self) -> str:
        """Return the name of our database, which tells it from every other."""
        if self._identity is None:
            rows = await self._database.call(
                functions.SUBMIT_JSON,
                partition_key=0,
                namespace=DEFAULT_NAMESPACE,
                items="[]",
                database=None,
            )
            self._identity = str(json.loads(rows[0]["submit_json"])["database"])
        return self._identity
