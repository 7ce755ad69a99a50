"""Tasks: register what an app knows about its tasks, and read the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from flowfabric.client.addresses import Scoped
from flowfabric.core.errors import InvalidInput, TaskNotFound
from flowfabric.core.execution import check_name
from flowfabric.core.task import TaskDeclaration, TaskInfo, TaskName
from flowfabric.db import functions
from flowfabric.db.records import optional, reader

# Defined here because, inside the class, `list` is the method `Tasks.list`.
TaskNames: TypeAlias = list[TaskName]

_name = reader(TaskName, functions.LIST_TASKS)
_info = reader(
    TaskInfo,
    functions.DESCRIBE_TASK,
    arguments=optional(json.loads),
    result=optional(json.loads),
    limits=json.loads,
    signals=optional(json.loads),
)


class Tasks(Scoped):
    """The registry of tasks."""

    async def register(
        self, namespace: str, version: Sequence[int], tasks: Sequence[TaskDeclaration]
    ) -> Mapping[str, str]:
        """Register tasks of an app; return the outcome for each task.

        The outcome `newer` means that a higher version of the app has registered the task, so
        nothing changed.
        """
        rows = await self._database.call(
            functions.REGISTER_TASKS,
            namespace=namespace,
            version=list(version),
            tasks=[one.task for one in tasks],
            versions=[one.version for one in tasks],
            arguments=[_json(one.arguments) for one in tasks],
            results=[_json(one.result) for one in tasks],
            limits=[_json(list(one.limits)) for one in tasks],
            signals=[_json(one.signals) for one in tasks],
        )
        return {row["task"]: row["outcome"] for row in rows}

    async def list(self, *, after: str | None = None, limit: int = 1000) -> TaskNames:
        """List tasks in byte order of their names, from the first name after `after`.

        A task is listed if an app has registered it, or if it has a route. Clients register a route
        before they submit a task, and before they declare a schedule or a hook for it.
        """
        rows = await self._database.call(
            functions.LIST_TASKS, namespace=self._namespace, limit=limit, after=after
        )
        return [_name(row) for row in rows]

    async def describe(self, task: str) -> TaskInfo:
        """Return what an app registered about a task: schemas, version and limits.

        A client of all namespaces gets InvalidInput if several namespaces have this task.
        """
        check_name("task", task)
        rows = await self._database.call(
            functions.DESCRIBE_TASK, namespace=self._namespace, task=task
        )
        if not rows:
            raise TaskNotFound.explained({"task": task})
        if len(rows) > 1:
            names = ", ".join(row["namespace"] for row in rows)
            raise InvalidInput(
                field="namespace", problem=f"must be given: the task {task} exists in {names}"
            )
        return _info(rows[0])


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))
