"""Providers. A provider makes the values for all parameters of one type.

The scope of the provider decides whether a value is made for one run of a handler, or for all
workers of a process.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

from flowfabric.core.errors import InvalidInput
from flowfabric.tasks.handler_context import HandlerContext, is_context

Factory = Callable[..., Any]
Values = dict["ResolvedProvider", Any]

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _Provided:
    """The default of a parameter that the worker fills in: `session: Session = provided`.

    Because of the default, type checkers let a caller leave the parameter out.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "provided"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name!r} was used on a parameter that only a worker provides; pass the parameter "
            "if you call the function yourself"
        )


provided: Final[Any] = _Provided()


class Scope(StrEnum):
    """How long a provided value lives."""

    EXECUTION = "execution"
    WORKER = "worker"


def wanted_type(hint: Any) -> Any:
    """Return the class that a type hint names, without `Annotated` or `| None`."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        members = [one for one in get_args(hint) if one is not type(None)]
        hint = members[0] if len(members) == 1 else hint
    return hint


def type_name(wanted: Any) -> str:
    return getattr(wanted, "__qualname__", None) or str(wanted)


@dataclass(frozen=True, eq=False)
class Provider:
    """One registered provider: the factory that makes the values of a type."""

    type: Any
    factory: Factory
    scope: Scope

    @cached_property
    def make(self) -> Factory:
        """The factory. A generator function becomes a context manager."""
        if inspect.isasyncgenfunction(self.factory):
            return asynccontextmanager(self.factory)
        if inspect.isgeneratorfunction(self.factory):
            return contextmanager(self.factory)
        return self.factory

    @cached_property
    def is_async(self) -> bool:
        """Whether the factory is async, or the provided type is an async context manager."""
        inner = inspect.unwrap(_unwrap_partial(self.factory))
        called = getattr(type(inner), "__call__", None)  # noqa: B004  an object's own method
        return any(
            inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
            for one in (inner, called)
        ) or hasattr(self.type, "__aenter__")

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters of the factory that have no default, with their types."""
        try:
            parameters = inspect.signature(self.factory).parameters.values()
        except ValueError:  # a class written in C has no signature
            return {}
        names = [
            one.name
            for one in parameters
            if one.kind not in _GATHERING
            and (one.default is inspect.Parameter.empty or one.default is provided)
        ]
        hints = self._hints() if names else {}
        for name in names:
            if name not in hints:
                raise InvalidInput(
                    field=f"the factory of {type_name(self.type)}",
                    problem=f"its parameter {name} has no type hint, so nothing is provided",
                )
        return {name: wanted_type(hints[name]) for name in names}

    def _hints(self) -> dict[str, Any]:
        inner = _unwrap_partial(self.factory)
        if isinstance(inner, type):
            inner = inner.__init__  # type: ignore[misc]
        elif not inspect.isroutine(inner):
            inner = type(inner).__call__
        try:
            return get_type_hints(inner, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                field=f"the factory of {type_name(self.type)}",
                problem=f"its type hints name something that cannot be found: {error}",
            ) from error


@dataclass(frozen=True)
class ResolvedProvider:
    """A provider, together with the providers of its factory's parameters.

    Two resolved providers are equal if their factories and their dependencies are equal. So an
    override of one provider also replaces all values that depend on it.
    """

    provider: Provider
    needs: tuple[tuple[str, ResolvedProvider | None], ...] = ()  # None is the context

    @cached_property
    def _hash(self) -> int:
        return hash((self.provider, self.needs))

    def __hash__(self) -> int:
        return self._hash

    async def enter(
        self, stack: AsyncExitStack, values: Values, context: HandlerContext | None
    ) -> Any:
        """Make the value on the event loop. `stack` will close the value."""
        made = self._make(values, context)
        if not _is_manager(made) and inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            made = await stack.enter_async_context(made)
        elif isinstance(made, AbstractContextManager):
            made = stack.enter_context(made)
        values[self] = made
        return made

    def enter_sync(self, stack: ExitStack, values: Values, context: HandlerContext | None) -> Any:
        """Make the value in the thread that uses the value. `stack` will close the value."""
        made = self._make(values, context)
        if isinstance(made, AbstractContextManager):
            made = stack.enter_context(made)
        elif isinstance(made, AbstractAsyncContextManager) or inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(
                f"the factory of {type_name(self.provider.type)} returned an awaitable, but a "
                "`def` task called it in its thread; make the factory an async function"
            )
        values[self] = made
        return made

    def _make(self, values: Values, context: HandlerContext | None) -> Any:
        return self.provider.make(
            **{name: context if one is None else values[one] for name, one in self.needs}
        )


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """The provided parameters of one task, and all values to make for them, dependencies first."""

    given: Mapping[str, ResolvedProvider] = field(default_factory=dict)
    of_worker: tuple[ResolvedProvider, ...] = ()
    on_loop: tuple[ResolvedProvider, ...] = ()
    in_thread: tuple[ResolvedProvider, ...] = ()

    def given_of(self, values: Values) -> dict[str, Any]:
        """Return the provided parameters with their values."""
        return {name: values[resolved] for name, resolved in self.given.items()}


class Providers:
    """The providers of an app, by the type they provide."""

    def __init__(self) -> None:
        self._registered: dict[Any, Provider] = {}
        self._overriding: list[Provider] = []
        self.found: dict[Any, Provider] = {}
        self._resolved: dict[Any, ResolvedProvider] = {}
        self._plans: dict[str, ProviderPlan] = {}

    def __contains__(self, wanted: Any) -> bool:
        try:
            return wanted in self.found
        except TypeError:  # the hint is not hashable
            return False

    def register(self, wanted: Any, factory: Factory, scope: str) -> None:
        if wanted in self._registered:
            raise InvalidInput(
                field="type",
                problem=f"{type_name(wanted)} already has a provider; tests replace it with "
                "app.overriding(...)",
            )
        self._registered[wanted] = _provider(wanted, factory, scope)
        self._reset()

    @contextmanager
    def overriding(self, wanted: Any, factory: Factory) -> Iterator[None]:
        """Replace the factory of a type inside a `with` block. The scope stays the same."""
        before = self.found.get(wanted)
        provider = _provider(wanted, factory, before.scope if before else Scope.EXECUTION)
        self._overriding.append(provider)
        self._reset()
        try:
            yield
        finally:
            self._overriding.remove(provider)
            self._reset()

    def plan(self, task: str, wanted: Mapping[str, Any], *, is_async: bool) -> ProviderPlan:
        """Return which values a task needs, and where to make each of them.

        Raises `InvalidInput` if a parameter has no provider.
        """
        plan = self._plans.get(task)
        if plan is None:
            plan = self._plans[task] = self._make_plan(task, wanted, is_async=is_async)
        return plan

    def _make_plan(self, task: str, wanted: Mapping[str, Any], *, is_async: bool) -> ProviderPlan:
        given = {
            name: self._resolve(one, f"task {task}", f"its parameter {name} takes", ())
            for name, one in wanted.items()
        }
        order: dict[ResolvedProvider, None] = {}
        for resolved in given.values():
            _put_in_order(resolved, order)
        of_worker = [one for one in order if one.provider.scope is Scope.WORKER]
        own = [one for one in order if one.provider.scope is Scope.EXECUTION]
        if is_async:
            return ProviderPlan(given, tuple(of_worker), tuple(own))
        # A task that is not async makes its values in its thread, unless they need the event loop.
        on_loop: dict[ResolvedProvider, None] = {}
        for resolved in own:
            if resolved.provider.is_async:
                _put_in_order(resolved, on_loop)
        return ProviderPlan(
            given,
            tuple(of_worker),
            tuple(one for one in own if one in on_loop),
            tuple(one for one in own if one not in on_loop),
        )

    def _resolve(
        self, wanted: Any, whose: str, what: str, trail: tuple[Any, ...]
    ) -> ResolvedProvider:
        if (known := self._resolved.get(wanted)) is not None:
            return known
        name = type_name(wanted)
        provider = self.found.get(wanted)
        if provider is None:
            raise InvalidInput(
                field=whose,
                problem=f"{what} a {name}, but nothing provides one: call app.provide({name}, ...)",
            )
        if wanted in trail:
            circle = " → ".join(type_name(one) for one in (*trail, wanted))
            raise InvalidInput(
                field=f"the factory of {name}", problem=f"it depends on itself: {circle}"
            )
        field = f"the factory of {name}"
        needs: list[tuple[str, ResolvedProvider | None]] = []
        for parameter, one in provider.parameters.items():
            if is_context(one):
                if provider.scope is Scope.WORKER:
                    raise InvalidInput(
                        field=field, problem="it takes a Context, but its scope is the worker"
                    )
                needs.append((parameter, None))
                continue
            need = self._resolve(one, field, f"its parameter {parameter} takes", (*trail, wanted))
            if provider.scope is Scope.WORKER and need.provider.scope is Scope.EXECUTION:
                raise InvalidInput(
                    field=field,
                    problem=f"its scope is the worker, but it takes a {type_name(one)}, which is "
                    "made for every execution",
                )
            needs.append((parameter, need))
        resolved = self._resolved[wanted] = ResolvedProvider(provider, tuple(needs))
        return resolved

    def _reset(self) -> None:
        self.found = {**self._registered, **{one.type: one for one in self._overriding}}
        self._resolved = {}
        self._plans = {}


def _provider(wanted: Any, factory: Factory, scope: str) -> Provider:
    if not isinstance(wanted, type):
        raise InvalidInput(field="type", problem=f"must be a class, not {wanted!r}")
    if is_context(wanted) or wanted.__module__ == "builtins":
        raise InvalidInput(
            field="type",
            problem=f"{type_name(wanted)} cannot be provided: it would replace every argument of "
            "that type; define your own class",
        )
    if not callable(factory):
        raise InvalidInput(
            field="factory",
            problem=f"must be a callable that makes a {type_name(wanted)}",
        )
    if scope not in tuple(Scope):
        raise InvalidInput(field="scope", problem="must be 'execution' or 'worker'")
    return Provider(wanted, factory, Scope(scope))


def _put_in_order(resolved: ResolvedProvider, order: dict[ResolvedProvider, None]) -> None:
    """Add a provider to `order`, after all its dependencies."""
    if resolved not in order:
        for _, need in resolved.needs:
            if need is not None:
                _put_in_order(need, order)
        order[resolved] = None


def _unwrap_partial(factory: Factory) -> Any:
    while isinstance(factory, partial):
        factory = factory.func
    return factory


def _is_manager(made: Any) -> bool:
    return isinstance(made, AbstractAsyncContextManager | AbstractContextManager)
