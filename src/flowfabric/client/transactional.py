"""Submits that join a transaction of the caller's, on a connection of the caller's: what has to be
known of our database before. `submissions` says what is sent, and `app.via` sends it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowfabric.client.lanes import Lanes
from flowfabric.client.submissions import Place
from flowfabric.core.execution import DEFAULT_NAMESPACE, Submission
from flowfabric.db import functions
from flowfabric.db.session import Database


class Transactional:
    """The place that submissions on another connection are meant for."""

    def __init__(self, database: Database, lanes: Lanes) -> None:
        self._database = database
        self._lanes = lanes
        self._identity: str | None = None

    async def place(self, submissions: Sequence[Submission], *, anew: bool = False) -> Place:
        """Register the routes of submissions, on a connection of ours: a caller's transaction that
        is rolled back must not take them with it. `anew` asks again for all that was known."""
        if anew:
            self._lanes.forget()
            self._identity = None
        for submission in submissions:
            submission.check()
        for route in {submission.route for submission in submissions}:
            await self._lanes.register(route)
        if self._identity is None:
            rows = await self._database.call(
                functions.SUBMIT_JSON,
                partition_key=0,
                namespace=DEFAULT_NAMESPACE,
                items="[]",
                database=None,
            )
            self._identity = str(json.loads(rows[0]["submit_json"])["database"])
        return Place(self._lanes.known, self._identity)
