"""Hooks: the registrations of `task.on_failure`, `app.on_end` and similar decorators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from flowfabric.client import HookDeclaration
from flowfabric.core.ended_execution import Ended
from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import mint
from flowfabric.core.policy import Retry
from flowfabric.core.states import HookKind
from flowfabric.handlers import Context
from flowfabric.tasks import HookSpec, OnChange, TaskSpec

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.task import Task

E = TypeVar("E", bound=Ended[Any])
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EndHook:
    """A registered hook: `task` is submitted when an execution of another task ends.

    `of` is the name of that other task; None means every task. `kind` says which ends count, for
    example only failures.
    """

    task: Task[..., Any, Any]
    kind: HookKind
    of: str | None

    def declaration(self, task: str) -> HookDeclaration:
        """Build the declaration of this hook for one task."""
        submission = self.task.node_submission(mint(), b"{}", None, {})
        submission.check()
        return HookDeclaration(task=task, kind=self.kind, submission=submission)


class HookDecorator(Generic[E]):
    """Registers a function as a hook: `@task.on_failure` or `@task.on_failure(retry=...)`.

    The function takes an `Ended`, and optionally a context. The function becomes a task, with the
    options of `app.task`. The engine submits this task when an execution ends.
    """

    def __init__(
        self,
        app: App,
        kind: HookKind,
        of: TaskSpec | None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(of, HookSpec):
            raise InvalidInput(
                field="task", problem=f"{of.name} is a hook, and a hook has no hooks"
            )
        self._app = app
        self._kind = kind
        self._of = of
        self._options = dict(options or {})

    @overload
    def __call__(
        self, function: Callable[[Context, E], Coroutine[Any, Any, V]], /
    ) -> Task[[E], Coroutine[Any, Any, V], V]: ...
    @overload
    def __call__(
        self, function: Callable[[E], Coroutine[Any, Any, V]], /
    ) -> Task[[E], Coroutine[Any, Any, V], V]: ...
    @overload
    def __call__(self, function: Callable[[Context, E], V], /) -> Task[[E], V, V]: ...
    @overload
    def __call__(self, function: Callable[[E], V], /) -> Task[[E], V, V]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        lane: str | None = None,
        priority: int = 0,
        needs: Iterable[str] = (),
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        max_reclaims: int | None = None,
        retention: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        version: str | None = None,
        on_change: OnChange = "hold",
    ) -> HookDecorator[E]: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if function is None:
            given = {name: value for name, value in options.items() if value is not None}
            return HookDecorator(self._app, self._kind, self._of, given)
        return self._app.add_hook(function, self._kind, self._of, self._options)
