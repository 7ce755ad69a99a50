"""A task as its callers see it: called, it is the plain function; submitted, it is durable."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from flowfabric.app.run import Run
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    DEFAULT_KEY_WINDOW,
    Route,
    Submission,
    check_tags,
    check_text,
)
from flowfabric.core.ids import mint, mint_for_key
from flowfabric.core.states import KeyScope
from flowfabric.worker.task import TaskSpec

if TYPE_CHECKING:
    from flowfabric.app.app import App

P = ParamSpec("P")
R = TypeVar("R")  # what calling the function returns: for `async def`, a coroutine
T = TypeVar("T")  # the result of the execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one submission asks for beyond its arguments; None is the task's own."""

    lane: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    delayed_until: datetime | None = None
    deadline: timedelta | None = None
    key: str | None = None
    unique: str = "window"
    window: timedelta = DEFAULT_KEY_WINDOW
    tags: Mapping[str, str] | None = None


class Task(Generic[P, R, T]):
    """A registered function. `await task.submit(...)` stores an execution of it."""

    def __init__(self, app: App, spec: TaskSpec, options: Options | None = None) -> None:
        self.spec = spec
        self._app = app
        self._options = options or Options()
        self._routes: dict[tuple[str, str], Route] = {}
        self.__doc__ = spec.function.__doc__
        self.__name__ = spec.function.__name__

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        return f"Task({self.name})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.spec.function(*args, **kwargs))

    def using(
        self,
        *,
        lane: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        delayed_until: datetime | None = None,
        deadline: timedelta | None = None,
        key: str | None = None,
        unique: str | None = None,
        window: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Task[P, R, T]:
        """The same task with other options for the submissions made through it."""
        given: dict[str, Any] = {
            "lane": lane,
            "priority": priority,
            "delay": delay,
            "delayed_until": delayed_until,
            "deadline": deadline,
            "key": key,
            "unique": unique,
            "window": window,
            "tags": tags,
        }
        options = replace(
            self._options, **{name: value for name, value in given.items() if value is not None}
        )
        return Task(self._app, self.spec, options)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Store an execution of this task; when this returns, it is durable."""
        client = await self._app.client()
        submitted = await client.executions.submit(self.submission(args, kwargs))
        return self._run(submitted.id, submitted.is_duplicate)

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """`submit` for synchronous code; an error inside a running event loop."""
        return self._app.portal.call(
            lambda: self.submit(*args, **kwargs), f"{self.__name__}.submit(...)"
        )

    async def submit_many(self, calls: list[tuple[Any, ...]]) -> list[Run[T]]:
        """Store an execution for each tuple of arguments, many in one transaction."""
        client = await self._app.client()
        submissions = [self.submission(args, {}) for args in calls]
        answers = await client.executions.submit_many(submissions)
        return [self._run(answer.id, answer.is_duplicate) for answer in answers]

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """What a submit with these arguments would store."""
        spec, options = self.spec, self._options
        namespace = self._app.settings.namespace
        payload = spec.encode(args, kwargs)
        lane = spec.lane if options.lane is None else options.lane
        if options.tags is not None:
            check_tags(options.tags)
        keyed: dict[str, Any] = {}
        if options.key is not None:
            check_text("key", options.key, 512)
            if not isinstance(options.window, timedelta):
                raise InvalidInput(
                    field="window",
                    problem=f"must be a timedelta, not {type(options.window).__name__}",
                )
            if options.unique not in tuple(KeyScope):
                raise InvalidInput(field="unique", problem="must be 'window' or 'unfinished'")
            keyed = {
                "key": options.key,
                "key_fingerprint": hashlib.sha256(spec.name.encode() + b"\0" + payload).digest(),
                "key_scope": KeyScope(options.unique),
                "key_window": options.window,
            }
        return Submission(
            id=mint() if options.key is None else mint_for_key(namespace, options.key),
            route=self._route(namespace, lane),
            payload=payload,
            priority=spec.priority if options.priority is None else options.priority,
            delay=options.delay,
            delayed_until=options.delayed_until,
            deadline=spec.deadline if options.deadline is None else options.deadline,
            policy=spec.policy,
            max_reclaims=spec.max_reclaims,
            tags=spec.tags if options.tags is None else {**spec.tags, **options.tags},
            **keyed,
        )

    def _route(self, namespace: str, lane: str) -> Route:
        route = self._routes.get((namespace, lane))
        if route is None:
            route = Route(namespace, lane, self.spec.name, self.spec.needs)
            route.check()
            self._routes[namespace, lane] = route
        return route

    def _run(self, id: Any, is_duplicate: bool) -> Run[T]:
        return Run(
            id,
            self.name,
            self._app.client,
            self.spec.decode_result,
            is_duplicate=is_duplicate,
            call=self._app.portal.call,
        )
