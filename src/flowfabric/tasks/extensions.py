"""What an app puts around the runs of its tasks and around the life of its workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.tasks.middleware import Middleware, call_through
from flowfabric.tasks.providers import Opening, Plan, Providers, Values
from flowfabric.tasks.spec import TaskSpec

Hook = Callable[[], Any]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Shared = Callable[[tuple[Opening, ...]], Awaitable[Values]]


class Extensions:
    """Middleware, providers and hooks, as they were registered."""

    def __init__(self) -> None:
        self.middleware: list[Middleware] = []
        self.providers = Providers()
        self.on_startup: list[Hook] = []
        self.on_shutdown: list[Hook] = []

    @property
    def is_bare(self) -> bool:
        """Whether a run is a call of the task's function and nothing else."""
        return not (self.middleware or self.providers.found)

    def plan(self, spec: TaskSpec) -> Plan:
        """What the parameters of a task are given; `InvalidInput` if one has no provider."""
        return self.providers.plan(spec.name, spec.provided, is_async=spec.is_async)

    async def run(
        self,
        spec: TaskSpec,
        context: HandlerContext,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        shared: Shared,
        in_thread: InThread,
    ) -> Any:
        """Call a task through the middleware, with what it is provided."""
        call = partial(self._call, spec, context, args, kwargs, shared, in_thread)
        return await call_through(self.middleware, context, call)

    async def _call(
        self,
        spec: TaskSpec,
        context: HandlerContext,
        args: list[Any],
        kwargs: dict[str, Any],
        shared: Shared,
        in_thread: InThread,
    ) -> Any:
        plan = self.plan(spec)
        values = dict(await shared(plan.of_worker)) if plan.of_worker else {}
        async with AsyncExitStack() as stack:
            try:
                for opening in plan.on_loop:
                    await opening.enter(stack, values, context)
                if not spec.is_async:
                    return await in_thread(
                        partial(_call_plain, spec, plan, context, values, args, kwargs)
                    )
                spec.place(args, kwargs, plan.given_of(values))
                return await spec.function(*args, **kwargs)
            except BaseException as error:
                raised = error
                raise
        # A context manager that swallows an error must not make a success of a failure.
        raise raised


def _call_plain(
    spec: TaskSpec,
    plan: Plan,
    context: HandlerContext,
    values: Values,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    with ExitStack() as stack:
        try:
            for opening in plan.in_thread:
                opening.enter_sync(stack, values, context)
            spec.place(args, kwargs, plan.given_of(values))
            return spec.function(*args, **kwargs)
        except BaseException as error:
            raised = error
            raise
    raise raised
