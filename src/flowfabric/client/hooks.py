"""Hooks: declare which tasks the engine submits when an execution ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flowfabric.client.lanes import Lanes
from flowfabric.client.submissions import options
from flowfabric.core.execution import Submission
from flowfabric.core.states import HookKind
from flowfabric.db import functions
from flowfabric.db.session import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDeclaration:
    """One hook of one task.

    When an execution of `task` ends, and `kind` includes its outcome, the engine submits the hook.
    The hook gets the route, the priority and the options of `submission`, and a new id.
    """

    task: str
    kind: HookKind
    submission: Submission


class Hooks:
    """Declares hooks to the engine."""

    def __init__(self, database: Database, lanes: Lanes) -> None:
        self._database = database
        self._lanes = lanes

    async def declare(
        self,
        namespace: str,
        version: Sequence[int],
        known: Collection[str],
        declarations: Sequence[HookDeclaration] = (),
    ) -> list[str]:
        """Declare all hooks of the tasks in `known`. Return the names of the removed hooks.

        The engine removes earlier hooks of these tasks that are not in `declarations`. A hook that
        a newer version of the app has declared or removed stays unchanged.
        """
        submissions = [one.submission for one in declarations]
        rows = await self._database.call(
            functions.DECLARE_HOOKS,
            namespace=namespace,
            version=list(version),
            known=sorted(known),
            tasks=[one.task for one in declarations],
            names=[one.route.task for one in submissions],
            kinds=[one.kind.value for one in declarations],
            route_ids=[await self._lanes.register(one.route) for one in submissions],
            priorities=[one.priority for one in submissions],
            options=options(submissions),
        )
        return list(rows[0]["removed"])
