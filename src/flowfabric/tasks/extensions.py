"""The extensions of an app: middleware and providers for tasks, hooks for workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.tasks.middleware import Middleware, call_middleware
from flowfabric.tasks.providers import ProviderPlan, Providers, ResolvedProvider, Values
from flowfabric.tasks.spec import TaskSpec

Hook = Callable[[], Any]
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Shared = Callable[[tuple[ResolvedProvider, ...]], Awaitable[Values]]


class Extensions:
    """The middleware, providers and hooks that an app has registered."""

    def __init__(self) -> None:
        self.middleware: list[Middleware] = []
        self.providers = Providers()
        self.on_startup: list[Hook] = []
        self.on_shutdown: list[Hook] = []
        # Provides connections for transactional steps. None means our own connections to the app's
        # database.
        self.connect: Callable[[], Any] | None = None
        # The address of the server that answers the links of waitpoints.
        self.public_url: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the app has no middleware and no providers, so a run only calls the function."""
        return not (self.middleware or self.providers.found)

    def plan(self, spec: TaskSpec) -> ProviderPlan:
        """Return which values a task needs, and where to make each of them.

        Raises `InvalidInput` if a provider is missing.
        """
        return self.providers.plan(spec.name, spec.provided, is_async=spec.is_async)

    async def call(
        self,
        spec: TaskSpec,
        context: HandlerContext,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        shared: Shared,
        run_in_thread: RunInThread,
    ) -> Any:
        """Call a task through the middleware, with its provided parameters."""
        call = partial(self._call, spec, context, args, kwargs, shared, run_in_thread)
        return await call_middleware(self.middleware, context, call)

    async def _call(
        self,
        spec: TaskSpec,
        context: HandlerContext,
        args: list[Any],
        kwargs: dict[str, Any],
        shared: Shared,
        run_in_thread: RunInThread,
    ) -> Any:
        plan = self.plan(spec)
        values = dict(await shared(plan.of_worker)) if plan.of_worker else {}
        async with AsyncExitStack() as stack:
            try:
                for resolved in plan.on_loop:
                    await resolved.enter(stack, values, context)
                if not spec.is_async:
                    return await run_in_thread(
                        partial(_call_plain, spec, plan, context, values, args, kwargs)
                    )
                spec.insert_provided(args, kwargs, plan.given_of(values))
                return await spec.function(*args, **kwargs)
            except BaseException as error:
                raised = error
                raise
        # If a context manager suppressed the error, the attempt must still fail.
        raise raised


def _call_plain(
    spec: TaskSpec,
    plan: ProviderPlan,
    context: HandlerContext,
    values: Values,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    with ExitStack() as stack:
        try:
            for resolved in plan.in_thread:
                resolved.enter_sync(stack, values, context)
            spec.insert_provided(args, kwargs, plan.given_of(values))
            return spec.function(*args, **kwargs)
        except BaseException as error:
            raised = error
            raise
    raise raised
