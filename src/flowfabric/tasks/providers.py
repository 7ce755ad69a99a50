"""Providers: what a task's parameters are given by their type, made for one execution or for the
whole life of a worker process."""

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
Values = dict["Opening", Any]

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _Provided:
    """The default of a parameter that a worker provides: `session: Session = provided`.

    Whoever submits the task or calls its function may leave such a parameter out.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "provided"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name!r} was asked of a parameter that only a worker provides; whoever calls the "
            "function itself has to pass it"
        )


provided: Final[Any] = _Provided()


class Scope(StrEnum):
    """How long a provided value lives."""

    EXECUTION = "execution"
    WORKER = "worker"


def wanted_type(hint: Any) -> Any:
    """The class that a hint asks for, with `Annotated` and `| None` taken off."""
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
    """One registered factory."""

    type: Any
    factory: Factory
    scope: Scope

    @cached_property
    def make(self) -> Factory:
        """The factory; of a generator function, the context manager it stands for."""
        if inspect.isasyncgenfunction(self.factory):
            return asynccontextmanager(self.factory)
        if inspect.isgeneratorfunction(self.factory):
            return contextmanager(self.factory)
        return self.factory

    @cached_property
    def is_async(self) -> bool:
        """Whether it needs the event loop, as far as one can tell without calling it."""
        inner = inspect.unwrap(_innermost(self.factory))
        called = getattr(type(inner), "__call__", None)  # noqa: B004  an object's own method
        return any(
            inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
            for one in (inner, called)
        ) or hasattr(self.type, "__aenter__")

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters it has to be given, with their types. Those with a default keep it."""
        try:
            parameters = inspect.signature(self.factory).parameters.values()
        except ValueError:  # a class written in C tells nothing
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
                    problem=f"its parameter {name} has no type hint, so nothing can be provided",
                )
        return {name: wanted_type(hints[name]) for name in names}

    def _hints(self) -> dict[str, Any]:
        inner = _innermost(self.factory)
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
class Opening:
    """A provider together with what its factory is given: all it takes to make a value.

    Two of them are equal if they make the same from the same, so an override deep down makes
    everything that rests on it anew.
    """

    provider: Provider
    needs: tuple[tuple[str, Opening | None], ...] = ()  # None: the context

    @cached_property
    def _hash(self) -> int:
        return hash((self.provider, self.needs))

    def __hash__(self) -> int:
        return self._hash

    async def enter(
        self, stack: AsyncExitStack, values: Values, context: HandlerContext | None
    ) -> Any:
        """Make the value on the event loop; the stack unmakes it."""
        made = self._made(values, context)
        if not _is_manager(made) and inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            made = await stack.enter_async_context(made)
        elif isinstance(made, AbstractContextManager):
            made = stack.enter_context(made)
        values[self] = made
        return made

    def enter_sync(self, stack: ExitStack, values: Values, context: HandlerContext | None) -> Any:
        """Make the value in the thread that uses it; the stack unmakes it."""
        made = self._made(values, context)
        if isinstance(made, AbstractContextManager):
            made = stack.enter_context(made)
        elif isinstance(made, AbstractAsyncContextManager) or inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(
                f"the factory of {type_name(self.provider.type)} gave something to await, but was "
                "called for a `def` task in its thread; make the factory an async function"
            )
        values[self] = made
        return made

    def _made(self, values: Values, context: HandlerContext | None) -> Any:
        return self.provider.make(
            **{name: context if one is None else values[one] for name, one in self.needs}
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What one task is given, and everything that has to be made for it, in order."""

    given: Mapping[str, Opening] = field(default_factory=dict)
    of_worker: tuple[Opening, ...] = ()
    on_loop: tuple[Opening, ...] = ()
    in_thread: tuple[Opening, ...] = ()

    def given_of(self, values: Values) -> dict[str, Any]:
        """The parameters with their values."""
        return {name: values[opening] for name, opening in self.given.items()}


class Providers:
    """The providers of an app, by the type they provide."""

    def __init__(self) -> None:
        self._registered: dict[Any, Provider] = {}
        self._overriding: list[Provider] = []
        self.found: dict[Any, Provider] = {}
        self._openings: dict[Any, Opening] = {}
        self._plans: dict[str, Plan] = {}

    def __contains__(self, wanted: Any) -> bool:
        try:
            return wanted in self.found
        except TypeError:  # a hint need not be hashable
            return False

    def register(self, wanted: Any, factory: Factory, scope: str) -> None:
        if wanted in self._registered:
            raise InvalidInput(
                field="type",
                problem=f"{type_name(wanted)} is provided already; tests replace it with "
                "app.overriding(...)",
            )
        self._registered[wanted] = _provider(wanted, factory, scope)
        self._changed()

    @contextmanager
    def overriding(self, wanted: Any, factory: Factory) -> Iterator[None]:
        """Provide it by another factory during the block, for as long a life as before."""
        before = self.found.get(wanted)
        provider = _provider(wanted, factory, before.scope if before else Scope.EXECUTION)
        self._overriding.append(provider)
        self._changed()
        try:
            yield
        finally:
            self._overriding.remove(provider)
            self._changed()

    def plan(self, task: str, wanted: Mapping[str, Any], *, is_async: bool) -> Plan:
        """How the parameters of a task are provided; `InvalidInput` if one cannot be."""
        plan = self._plans.get(task)
        if plan is None:
            plan = self._plans[task] = self._planned(task, wanted, is_async=is_async)
        return plan

    def _planned(self, task: str, wanted: Mapping[str, Any], *, is_async: bool) -> Plan:
        given = {
            name: self._opening(one, f"task {task}", f"its parameter {name} wants", ())
            for name, one in wanted.items()
        }
        order: dict[Opening, None] = {}
        for opening in given.values():
            _put_in_order(opening, order)
        of_worker = [one for one in order if one.provider.scope is Scope.WORKER]
        own = [one for one in order if one.provider.scope is Scope.EXECUTION]
        if is_async:
            return Plan(given, tuple(of_worker), tuple(own))
        # What a plain task uses is made in its thread, unless it needs the loop or is needed there.
        on_loop: dict[Opening, None] = {}
        for opening in own:
            if opening.provider.is_async:
                _put_in_order(opening, on_loop)
        return Plan(
            given,
            tuple(of_worker),
            tuple(one for one in own if one in on_loop),
            tuple(one for one in own if one not in on_loop),
        )

    def _opening(self, wanted: Any, whose: str, what: str, trail: tuple[Any, ...]) -> Opening:
        if (known := self._openings.get(wanted)) is not None:
            return known
        name = type_name(wanted)
        provider = self.found.get(wanted)
        if provider is None:
            raise InvalidInput(
                field=whose,
                problem=f"{what} a {name}, and nothing provides one: "
                f"app.provide({name}, ...) is missing",
            )
        if wanted in trail:
            circle = " → ".join(type_name(one) for one in (*trail, wanted))
            raise InvalidInput(
                field=f"the factory of {name}", problem=f"it needs itself in the end: {circle}"
            )
        field = f"the factory of {name}"
        needs: list[tuple[str, Opening | None]] = []
        for parameter, one in provider.parameters.items():
            if is_context(one):
                if provider.scope is Scope.WORKER:
                    raise InvalidInput(
                        field=field, problem="it wants a Context, but lives as long as the worker"
                    )
                needs.append((parameter, None))
                continue
            need = self._opening(one, field, f"its parameter {parameter} wants", (*trail, wanted))
            if provider.scope is Scope.WORKER and need.provider.scope is Scope.EXECUTION:
                raise InvalidInput(
                    field=field,
                    problem=f"it lives as long as the worker, but wants a {type_name(one)}, which "
                    "is made for every execution",
                )
            needs.append((parameter, need))
        opening = self._openings[wanted] = Opening(provider, tuple(needs))
        return opening

    def _changed(self) -> None:
        self.found = {**self._registered, **{one.type: one for one in self._overriding}}
        self._openings = {}
        self._plans = {}


def _provider(wanted: Any, factory: Factory, scope: str) -> Provider:
    if not isinstance(wanted, type):
        raise InvalidInput(field="type", problem=f"must be a class, not {wanted!r}")
    if is_context(wanted) or wanted.__module__ == "builtins":
        raise InvalidInput(
            field="type",
            problem=f"{type_name(wanted)} cannot be provided: it would take the place of every "
            "argument of that type; make a class of your own",
        )
    if not callable(factory):
        raise InvalidInput(
            field="factory",
            problem=f"must be something to call that makes a {type_name(wanted)}",
        )
    if scope not in tuple(Scope):
        raise InvalidInput(field="scope", problem="must be 'execution' or 'worker'")
    return Provider(wanted, factory, Scope(scope))


def _put_in_order(opening: Opening, order: dict[Opening, None]) -> None:
    """Everything that one rests on, then itself."""
    if opening not in order:
        for _, need in opening.needs:
            if need is not None:
                _put_in_order(need, order)
        order[opening] = None


def _innermost(factory: Factory) -> Any:
    while isinstance(factory, partial):
        factory = factory.func
    return factory


def _is_manager(made: Any) -> bool:
    return isinstance(made, AbstractAsyncContextManager | AbstractContextManager)
