"""Task: a registered function that can be called, or submitted as an execution."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from flowfabric import tracing
from flowfabric.app.hooks import HookDecorator
from flowfabric.app.run import Run
from flowfabric.app.via import submit_via, submit_via_sync
from flowfabric.core.ended import Ended
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    DEFAULT_KEY_WINDOW,
    MAX_KEY_BYTES,
    Alike,
    OnConflict,
    Route,
    Submission,
    Submitted,
    check_lane,
    check_tags,
    check_text,
)
from flowfabric.core.ids import AnyId, ExecutionId, mint, mint_for_key, mint_many, uuid7
from flowfabric.core.states import HookKind, KeyScope
from flowfabric.handlers import Context, async_only, context_of, current_run
from flowfabric.tasks import TaskSpec

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.client.submissions import Place

P = ParamSpec("P")
R = TypeVar("R")  # what calling the function returns: for `async def`, a coroutine
T = TypeVar("T")  # the result of the execution

Unique = Literal["window", "unfinished"]
Conflicts = Literal["raise", "existing"]

MOST_KEY_WINDOW = timedelta(days=3652)

# Options of `submit`, unless the task has a parameter of that name.
SUBMIT_OPTIONS = ("key", "unique", "window", "on_conflict", "via")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one submission; None means the option of the task."""

    lane: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    delayed_until: datetime | None = None
    deadline: timedelta | None = None
    key: str | None = None
    unique: Unique | None = None
    window: timedelta | None = None
    on_conflict: Conflicts | None = None
    tags: Mapping[str, str] | None = None
    via: object = None
    with_parent: bool = False


# Options that `using` alone takes.
_USING_OPTIONS = {field.name for field in fields(Options)} - set(SUBMIT_OPTIONS)


class Task(Generic[P, R, T]):
    """A registered function. `await task.submit(...)` stores an execution of it."""

    def __init__(self, app: App, spec: TaskSpec, options: Options | None = None) -> None:
        self.spec = spec
        self._app = app
        self._options = options or Options()
        self._routes: dict[tuple[str, str], Route] = {}
        self._shared_submission: Submission | None = None
        self.__doc__ = spec.function.__doc__
        self.__name__ = spec.function.__name__

    @property
    def app(self) -> App:
        """The app that registered the task."""
        return self._app

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def options(self) -> Options:
        """The options that were passed to `using`."""
        return self._options

    @property
    def function(self) -> Callable[..., R]:
        """The plain function. A context is an ordinary argument of it."""
        return self.spec.function

    def __repr__(self) -> str:
        return f"Task({self.name})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function now, without storing anything.

        A function that takes a context receives the context of the calling handler, unless one is
        passed.
        """
        if self.spec.context_name is None:
            return cast(R, self.spec.function(*args, **kwargs))
        return cast(R, self._call_in_context(args, kwargs))

    def using(
        self,
        *,
        lane: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        delayed_until: datetime | None = None,
        deadline: timedelta | None = None,
        key: str | None = None,
        unique: Unique | None = None,
        window: timedelta | None = None,
        on_conflict: Conflicts | None = None,
        tags: Mapping[str, str] | None = None,
        via: object = None,
        with_parent: bool | None = None,
    ) -> Task[P, R, T]:
        """Return the same task with other options for its submissions.

        `key` makes a repeated submission a duplicate for `window` (a day), or with
        `unique="unfinished"` until the first execution has ended. If the task used the key with
        other arguments, `on_conflict="raise"` (the default) raises KeyReused, and `"existing"`
        returns that run. `via` is a connection whose transaction the submission joins.
        `with_parent` cancels a child when its parent ends.
        """
        given: dict[str, Any] = {
            "lane": lane,
            "priority": priority,
            "delay": delay,
            "delayed_until": delayed_until,
            "deadline": deadline,
            "key": key,
            "unique": unique,
            "window": window,
            "on_conflict": on_conflict,
            "tags": tags,
            "via": via,
            "with_parent": with_parent,
        }
        options = replace(
            self._options, **{name: value for name, value in given.items() if value is not None}
        )
        if lane is not None:
            check_lane(lane)
        if options.delay is not None and options.delayed_until is not None:
            raise InvalidInput(field="delayed_until", problem="cannot be combined with a delay")
        return Task(self._app, self.spec, options)

    @property
    def on_success(self) -> HookDecorator[Ended[T]]:
        """Register a hook for executions of this task that succeeded: `@task.on_success`.

        A hook is a task of its own. The transaction that ends an execution submits it, once per
        end, with an `Ended` as its argument. It is named after this task (`shop.buy.on_success`)
        and runs in the lane of this task, unless its options say otherwise.
        """
        return HookDecorator(self._app, HookKind.SUCCESS, self.spec)

    @property
    def on_failure(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for executions that failed, expired or were skipped."""
        return HookDecorator(self._app, HookKind.FAILURE, self.spec)

    @property
    def on_cancel(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for executions that were cancelled."""
        return HookDecorator(self._app, HookKind.CANCEL, self.spec)

    @property
    def on_end(self) -> HookDecorator[Ended[T | None]]:
        """Register a hook for every end of an execution of this task."""
        return HookDecorator(self._app, HookKind.END, self.spec)

    # Python cannot type the arguments of a call together with options of ours (decision 0026): with
    # an option they are checked when the call is made. `using(...)` keeps the types.

    @overload
    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]: ...
    @overload
    async def submit(
        self,
        *args: Any,
        key: str | None,
        unique: Unique | None = None,
        window: timedelta | None = None,
        on_conflict: Conflicts | None = None,
        via: object = None,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    async def submit(self, *args: Any, via: object, **kwargs: Any) -> Run[T]: ...

    @async_only("task.submit_sync")
    async def submit(self, *args: Any, **kwargs: Any) -> Run[T]:
        """Submit an execution of this task; it is durable when this returns.

        With `via` it is stored when the transaction of that connection commits, or not at all.
        """
        task = self._take_options(kwargs) if kwargs else self
        if task._options.key is None and task._options.via is None:
            task._check_needs_no_key()
            payload = task.spec.encode(args, kwargs)
            alike = Alike(task._shared(), [uuid7()], [payload])
            await task._store_alike(alike)
            return task._new_runs(alike.uuids)[0]
        submission = task.submission(args, kwargs)
        answers = await task._store([submission])
        return task._unrecorded_runs(answers, [submission])[0]

    @overload
    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]: ...
    @overload
    def submit_sync(
        self,
        *args: Any,
        key: str | None,
        unique: Unique | None = None,
        window: timedelta | None = None,
        on_conflict: Conflicts | None = None,
        via: object = None,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    def submit_sync(self, *args: Any, via: object, **kwargs: Any) -> Run[T]: ...

    def submit_sync(self, *args: Any, **kwargs: Any) -> Run[T]:
        """`submit` for synchronous code; an error on a running event loop."""
        task = self._take_options(kwargs) if kwargs else self
        submission = task.submission(args, kwargs)
        answers = task._store_sync([submission], "submit")
        return task._unrecorded_runs(answers, [submission])[0]

    @async_only("task.submit_many_sync")
    async def submit_many(
        self, calls: Sequence[tuple[Any, ...]], *, keys: Sequence[str | None] | None = None
    ) -> list[Run[T]]:
        """Submit an execution for each tuple of arguments, many in one transaction.

        `keys` are the keys of the executions, in the same order; None for one without a key.
        `using(unique=..., window=..., on_conflict=...)` sets the options of the keys.
        """
        if keys is None and calls:
            alike = self._alike(calls)
            await self._store_alike(alike)
            return self._new_runs(alike.uuids)
        submissions = self._submissions(calls, keys)
        return self._unrecorded_runs(await self._store(submissions), submissions)

    def submit_many_sync(
        self, calls: Sequence[tuple[Any, ...]], *, keys: Sequence[str | None] | None = None
    ) -> list[Run[T]]:
        """`submit_many` for synchronous code."""
        if keys is None and calls and self._options.via is None:
            alike = self._alike(calls)
            self._app.portal.call(
                lambda: self._store_alike(alike), f"{self.__name__}.submit_many(...)"
            )
            return self._new_runs(alike.uuids)
        submissions = self._submissions(calls, keys)
        return self._unrecorded_runs(self._store_sync(submissions, "submit_many"), submissions)

    def get(self, id: AnyId) -> Run[T]:
        """Return the run of an execution of this task by its id or UUID; asks no database.

        Reading the result of an execution of another task raises InvalidInput.
        """

        def decoder(task: str) -> Callable[[bytes | None], T]:
            if task != self.name:
                raise InvalidInput(
                    field="id", problem=f"{run.id.uuid} is an execution of {task}, not {self.name}"
                )
            return self.spec.decode_result

        run = self._app.find_run(id, self.name, self.spec.decode_result, decoder)
        return run

    def _take_options(self, kwargs: dict[str, Any]) -> Task[P, R, T]:
        """Move the options out of keyword arguments, and return the task with them."""
        own = self.spec.keywords
        given = {
            name: kwargs.pop(name) for name in SUBMIT_OPTIONS if name in kwargs and name not in own
        }
        for name in kwargs:
            if name in _USING_OPTIONS and name not in own and not self.spec.takes_any_keyword:
                raise InvalidInput(
                    field=name,
                    problem=f"is no argument of {self.name}; if you mean the option, use "
                    f"task.using({name}=...).submit(...)",
                )
        return self.using(**given) if given else self

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """Build the submission for these arguments."""
        if self._options.key is None:
            self._check_needs_no_key()
        return self._keyed_submission(self._options.key, args, kwargs)

    def _keyed_submission(
        self, key: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Submission:
        if key is None:
            return self._submission(mint(), self.spec.encode(args, kwargs))
        payload, comparable = self.spec.encode_comparable(args, kwargs)
        facts = self._keyed(key, comparable)
        id = mint_for_key(self._app.settings.namespace, key)
        return self._submission(id, payload, **facts)

    def _check_needs_no_key(self) -> None:
        for option in ("unique", "window", "on_conflict"):
            if getattr(self._options, option) is not None:
                raise InvalidInput(field=option, problem="needs a key")

    def node_submission(
        self, id: ExecutionId, payload: bytes, payload_encoding: str | None
    ) -> Submission:
        """Build the submission for a node of a flow."""
        return self._submission(id, payload, payload_encoding=payload_encoding)

    def _submission(self, id: ExecutionId, payload: bytes, **facts: Any) -> Submission:
        spec, options = self.spec, self._options
        lane = spec.lane if options.lane is None else options.lane
        if options.tags is not None:
            check_tags(options.tags)
        return Submission(
            id=id,
            route=self._route(self._app.settings.namespace, lane),
            payload=payload,
            priority=spec.priority if options.priority is None else options.priority,
            delay=options.delay,
            delayed_until=options.delayed_until,
            deadline=spec.deadline if options.deadline is None else options.deadline,
            policy=spec.policy,
            max_reclaims=spec.max_reclaims,
            tags=spec.tags if options.tags is None else {**spec.tags, **options.tags},
            task_version=spec.version,
            **facts,
        )

    def run_of(self, submitted: Submitted) -> Run[T]:
        """Return the run of a submission of this task."""
        return self._run(submitted)

    def _submissions(
        self, calls: Sequence[tuple[Any, ...]], keys: Sequence[str | None] | None
    ) -> list[Submission]:
        self._check_takes_many()
        if keys is None:
            self._check_needs_no_key()
            keys = [None] * len(calls)
        if isinstance(keys, str) or len(keys) != len(calls):
            raise InvalidInput(
                field="keys", problem=f"must be a list of one key for each of {len(calls)} calls"
            )
        submissions = []
        for index, (args, key) in enumerate(zip(calls, keys, strict=True)):
            if not isinstance(args, tuple):
                raise _not_arguments(index, args)
            try:
                submissions.append(self._keyed_submission(key, args, {}))
            except InvalidInput as error:
                field = f"calls[{index}].{error.field}"
                if error.field == "key":
                    field = f"keys[{index}]"
                raise InvalidInput(field=field, problem=error.problem) from error
        return submissions

    def _alike(self, calls: Sequence[tuple[Any, ...]]) -> Alike:
        """Build the submissions of calls without keys."""
        self._check_takes_many()
        self._check_needs_no_key()
        encode, nothing = self.spec.encode, dict[str, Any]()
        payloads: list[bytes] = []
        for args in calls:
            if not isinstance(args, tuple):
                raise _not_arguments(len(payloads), args)
            try:
                payloads.append(encode(args, nothing))
            except InvalidInput as error:
                field = f"calls[{len(payloads)}].{error.field}"
                raise InvalidInput(field=field, problem=error.problem) from error
        return Alike(self._shared(), mint_many(len(payloads)), payloads)

    def _shared(self) -> Submission:
        """Return what the submissions of this task share; its id and payload do not count."""
        shared = self._shared_submission
        if shared is None or shared.route.namespace != self._app.settings.namespace:
            shared = self._shared_submission = self._submission(mint(), b"")
        return shared

    def _check_takes_many(self) -> None:
        if self._options.key is not None:
            raise InvalidInput(
                field="key", problem="belongs to one execution: pass keys=[...], one for each call"
            )

    def _keyed(self, key: str, comparable: bytes) -> dict[str, Any]:
        window, unique = self._options.window, self._options.unique
        on_conflict = self._options.on_conflict
        check_text("key", key, MAX_KEY_BYTES)
        if window is not None and not isinstance(window, timedelta):
            raise InvalidInput(
                field="window", problem=f"must be a timedelta, not {type(window).__name__}"
            )
        if window is not None and not timedelta(0) <= window <= MOST_KEY_WINDOW:
            raise InvalidInput(field="window", problem="must be between zero and ten years")
        if unique is not None and unique not in tuple(KeyScope):
            raise InvalidInput(field="unique", problem="must be 'window' or 'unfinished'")
        if on_conflict is not None and on_conflict not in tuple(OnConflict):
            raise InvalidInput(field="on_conflict", problem="must be 'raise' or 'existing'")
        return {
            "key": key,
            "key_fingerprint": hashlib.sha256(self.name.encode() + b"\0" + comparable).digest(),
            "key_scope": KeyScope.WINDOW if unique is None else KeyScope(unique),
            "key_window": DEFAULT_KEY_WINDOW if window is None else window,
            "on_conflict": OnConflict.RAISE if on_conflict is None else OnConflict(on_conflict),
        }

    async def _store(self, submissions: list[Submission]) -> list[Submitted]:
        self._check_has_no_parent()
        client = await self._app.client()
        if (via := self._options.via) is not None:
            with tracing.send_span(submissions):
                return await submit_via(
                    client, via, submissions, instead=f"{self.__name__}.submit_sync"
                )
        if len(submissions) == 1:
            return [await client.executions.submit(submissions[0])]
        return await client.executions.submit_many(submissions)

    async def _store_alike(self, alike: Alike) -> None:
        if self._options.via is not None:
            await self._store(list(alike))
            return
        self._check_has_no_parent()
        await (await self._app.client()).executions.submit_alike(alike)

    def _store_sync(self, submissions: list[Submission], verb: str) -> list[Submitted]:
        self._check_has_no_parent()
        instead = f"{self.__name__}.{verb}"
        call = self._app.portal.call
        if (via := self._options.via) is None:
            return call(lambda: self._store(submissions), f"{instead}(...)")

        def find(anew: bool) -> Place:
            # A synchronous connection needs a thread; async code can await that thread.
            thread = f"asyncio.to_thread({instead}_sync, ..., via=...)"
            return call(lambda: self._place(submissions, anew), thread)

        with tracing.send_span(submissions):
            return submit_via_sync(find, via, submissions, instead=instead)

    async def _place(self, submissions: list[Submission], anew: bool) -> Place:
        client = await self._app.client()
        return await client.transactional.place(submissions, anew=anew)

    def _check_has_no_parent(self) -> None:
        if self._options.with_parent:
            raise InvalidInput(
                field="with_parent", problem="is for children: submit the task with ctx.submit(...)"
            )

    def _call_in_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = cast(str, self.spec.context_name)
        if name in kwargs or any(isinstance(value, Context) for value in args):
            return self.spec.function(*args, **kwargs)
        handler_run = current_run.get()
        if handler_run is None:
            raise TypeError(
                f"{self.name} takes a Context, but no handler is running here. "
                f"Submit it, or call {self.__name__}.function with a context of your own"
            )
        whole = inspect.signature(self.spec.function)
        others = [p for p in whole.parameters.values() if p.name != name]
        given = whole.replace(parameters=others).bind(*args, **kwargs).arguments
        bound = inspect.BoundArguments(whole, cast(Any, {**given, name: context_of(handler_run)}))
        return self.spec.function(*bound.args, **bound.kwargs)

    def _route(self, namespace: str, lane: str) -> Route:
        route = self._routes.get((namespace, lane))
        if route is None:
            route = Route(namespace, lane, self.spec.name, self.spec.needs)
            route.check()
            self._routes[namespace, lane] = route
        return route

    def _unrecorded_runs(
        self, answers: Sequence[Submitted], submissions: Sequence[Submission]
    ) -> list[Run[T]]:
        """Return the runs of plain submits.

        Without a key, the next run of a handler submits others: the handler cannot pause for these.
        """
        pairs = zip(answers, submissions, strict=True)
        unrecorded = [answer.id for answer, submission in pairs if submission.key is None]
        if unrecorded and (handler_run := current_run.get()) is not None:
            handler_run.note_unrecorded(unrecorded)
        return [self._run(answer) for answer in answers]

    def _new_runs(self, uuids: Sequence[UUID | str]) -> list[Run[T]]:
        """Return the runs of executions that were just stored."""
        name, client, decode = self.name, self._app.client, self.spec.decode_result
        call, is_stored = self._app.portal.call, self._options.via is None
        runs: list[Run[T]] = [
            Run(uuid, name, client, decode, is_stored=is_stored, call=call) for uuid in uuids
        ]
        if (handler_run := current_run.get()) is not None:
            handler_run.note_unrecorded(run.id for run in runs)
        return runs

    def _run(self, answer: Submitted) -> Run[T]:
        return Run(
            answer.id,
            self.name,
            self._app.client,
            self.spec.decode_result,
            is_duplicate=answer.is_duplicate,
            is_stored=self._options.via is None,
            call=self._app.portal.call,
        )


def _not_arguments(index: int, args: object) -> InvalidInput:
    return InvalidInput(
        field=f"calls[{index}]",
        problem=f"must be a tuple of arguments, as in ({args!r:.40},)",
    )
