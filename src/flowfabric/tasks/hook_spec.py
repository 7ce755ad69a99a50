"""The worker's view of a hook: a task whose argument is the end of another execution."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from flowfabric.core.ended_execution import Ended, EndedError
from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import FlowInput
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import Outcome
from flowfabric.core.task import TaskDeclaration
from flowfabric.core.trace import facts_of
from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.tasks.inputs import fill_inputs
from flowfabric.tasks.spec import TaskSpec

# The encoding of a hook's payload after a node of a flow has ended. The results of other nodes are
# still missing in the payload.
ENDED_ENCODING = "json+ended"


@dataclass(frozen=True)
class HookSpec(TaskSpec):
    """One registered hook. Its only argument is an `Ended`, made from the stored payload."""

    find_task: Callable[[str], TaskSpec | None] = field(
        default=lambda _: None, repr=False, compare=False
    )

    def declaration(self, *, with_schemas: bool = True) -> TaskDeclaration:
        """Return what the registry of tasks stores about this hook.

        It lists no arguments, because callers do not submit hooks.
        """
        return TaskDeclaration(task=self.name, version=self.version)

    def check(self) -> None:
        _ = self._ended_name, self._result

    @cached_property
    def _ended_name(self) -> str:
        """The name of the parameter that receives the `Ended`."""
        names = list(self.signature.parameters)
        if len(names) != 1 or self.signature.parameters[names[0]].kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise InvalidInput(
                field=f"hook {self.name}",
                problem="must take one argument, an Ended, besides context and provided values; "
                f"it takes ({', '.join(names)})",
            )
        return names[0]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        raise InvalidInput(
            field="task", problem=f"{self.name} is a hook: the end of an execution submits it"
        )

    def decode(
        self, payload: bytes | None, context: HandlerContext | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Decode the payload that the database wrote when an execution ended."""
        arguments: dict[str, Any] = {self._ended_name: self._ended(_read(self.name, payload))}
        if self.context_name is not None:
            arguments[self.context_name] = context
        return self._arranged(arguments)

    def ended_id(self, payload: bytes | None) -> ExecutionId:
        """Return the id of the ended execution that a payload describes."""
        return ExecutionId.parse(_read(self.name, payload)["execution_id"])

    def fill_inputs(self, payload: bytes | None, inputs: Sequence[FlowInput]) -> bytes:
        """Put the results of other nodes of the flow into the arguments of the ended node."""
        facts = _read(self.name, payload)
        facts["arguments"] = from_json(fill_inputs(to_json(facts["arguments"]), inputs))
        return to_json(facts)

    def _ended(self, facts: Mapping[str, Any]) -> Ended[Any]:
        task = self.find_task(facts["task"])
        outcome = Outcome(facts["outcome"])
        return Ended(
            id=ExecutionId.parse(facts["execution_id"]),
            task=facts["task"],
            outcome=outcome,
            ended_at=datetime.fromisoformat(facts["ended_at"]),
            arguments=_arguments(task, facts["arguments"]),
            result=_result(task, facts["result"]) if outcome is Outcome.SUCCESS else None,
            error=_error(facts.get("error")),
            reason=facts.get("reason"),
            attempts=facts["attempts"],
            replay_count=facts["replay_count"],
        )


def _read(name: str, payload: bytes | None) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = from_json(payload or b"{}")
        if "execution_id" not in facts:
            _refuse(name, "it does not describe the end of an execution")
        return facts
    except ValueError as error:
        _refuse(name, str(error))


def _refuse(name: str, problem: str) -> NoReturn:
    raise InvalidInput(field="payload", problem=f"the hook {name} cannot read it: {problem}")


def _arguments(task: TaskSpec | None, stored: Any) -> Mapping[str, Any]:
    if not isinstance(stored, dict):
        return {}
    if task is None:
        return stored
    try:
        return task.decode_arguments(to_json(stored))
    except InvalidInput:
        # The arguments do not fit the task, which may be why it failed. Pass them as stored.
        return stored


def _result(task: TaskSpec | None, stored: Any) -> Any:
    if task is None:
        return stored
    try:
        return task.decode_result(to_json(stored))
    except (InvalidInput, ValueError):
        # The type of the result may have changed. Pass the result as stored.
        return stored


def _error(stored: Mapping[str, Any] | None) -> EndedError | None:
    if stored is None:
        return None
    detail = stored.get("detail")
    facts = facts_of(None if detail is None else base64.b64decode(detail))
    return EndedError(
        type=str(facts.get("type") or stored.get("category") or stored["class"]),
        message=str(facts.get("message") or stored.get("reason") or ""),
        trace=facts.get("trace"),
    )
