"""Task: a registered function. It can be called, or submitted as an execution."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, cast, overload

from typing_extensions import TypeVar

from flowfabric import tracing
from flowfabric.app.hooks import HookDecorator
from flowfabric.app.run import Run
from flowfabric.client import find_again, spread_payloads, submit_via, submit_via_sync
from flowfabric.core.ended_execution import Ended
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
from flowfabric.core.ids import AnyId, ExecutionId, mint, mint_in
from flowfabric.core.limit import Budget, Key, Limit, check_key, several
from flowfabric.core.states import HookKind, KeyScope
from flowfabric.handlers import Context, async_only, context_of, current_run
from flowfabric.tasks import Limits, TaskSpec

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.client import Destination, Find

P = ParamSpec("P")
R = TypeVar("R")  # what calling the function returns: for `async def`, a coroutine
T = TypeVar("T")  # the result of the execution
S = TypeVar("S", default=Any)  # what it streams as JSON

Unique = Literal["window", "unfinished"]
Conflicts = Literal["raise", "existing"]

MOST_KEY_WINDOW = timedelta(days=3652)

# Options of `submit`, unless the task has a parameter with the same name.
SUBMIT_OPTIONS = ("key", "unique", "window", "on_conflict", "via")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one submission. None means: use the option of the task."""

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
    limit: tuple[Limit, ...] = ()
    budget: tuple[Budget, ...] = ()
    fair_by: Key = None


# Options that only `using` accepts.
_USING_OPTIONS = {field.name for field in fields(Options)} - set(SUBMIT_OPTIONS)


class Task(Generic[P, R, T, S]):
    """A registered function. `await task.submit(...)` stores an execution of it."""

    def __init__(
        self,
        app: App,
        spec: TaskSpec,
        options: Options | None = None,
        namespace: str | None = None,
    ) -> None:
        self.spec = spec
        self._app = app
        # None: the namespace of the app.
        self._namespace = namespace
        self._options = options or Options()
        self._routes: dict[tuple[str, str], Route] = {}
        # For each partition, a submission with the fields that all submissions share.
        self._shared_submissions: dict[int, Submission] = {}
        self._own_limits = spec.limits
        if self._options.limit or self._options.budget or self._options.fair_by is not None:
            given = self._options
            self._own_limits = spec.limits.extended(given.limit, given.budget, given.fair_by)
            self._own_limits.check(spec)
            app.declare_limits(self._own_limits)
        self.__doc__ = spec.function.__doc__
        self.__name__ = spec.function.__name__

    @property
    def _limits(self) -> Limits:
        """The limits that a submission of this task names.

        If the task has no `fair_by` of its own, the `fair_by` of its lane counts.
        """
        own, lanes = self._own_limits, self._app.lanes
        if not lanes or own.fair_by is not None:
            return own
        options = lanes.get(self._options.lane or self.spec.lane)
        if (
            options is None
            or options.fair_by is None
            or options.fair_by not in self.spec.signature.parameters
        ):
            return own
        return own.extended((), (), options.fair_by)

    @property
    def app(self) -> App:
        """The app that registered the task."""
        return self._app

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def options(self) -> Options:
        """The options passed to `using`."""
        return self._options

    @property
    def function(self) -> Callable[..., R]:
        """The undecorated function. If it takes a context, pass one like any other argument."""
        return self.spec.function

    def __repr__(self) -> str:
        return f"Task({self.name})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly; nothing is stored.

        If the function takes a context and none is passed, it gets the context of the calling
        handler.
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
        limit: Limit | Sequence[Limit] | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        fair_by: Key = None,
    ) -> Task[P, R, T, S]:
        """Return a copy of this task with other options for its submissions.

        Submissions with the same `key` return the same execution. The key is valid for `window`
        (default: a day). With `unique="unfinished"`, it is valid until the execution has ended. If
        the same key was used with other arguments, `on_conflict="raise"` (the default) raises
        KeyReused, and `"existing"` returns the earlier run. If another task used the key, KeyReused
        is raised in both cases.

        If `via` is a connection, the submission joins the transaction of that connection.
        `with_parent` cancels a child when its parent ends.

        `limit` and `budget` apply in addition to the limits and budgets of the task. If the task
        already has a limit or a budget of the same name, the new one replaces only the `key` of
        that limit or budget. `fair_by` is the name of an argument, or a function of arguments:
        executions with different values take turns in their lane.
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
            "limit": several("limit", Limit, limit) or None,
            "budget": several("budget", Budget, budget) or None,
            "fair_by": fair_by,
        }
        options = replace(
            self._options, **{name: value for name, value in given.items() if value is not None}
        )
        if lane is not None:
            check_lane(lane)
        check_key("fair_by", fair_by)
        if options.delay is not None and options.delayed_until is not None:
            raise InvalidInput(field="delayed_until", problem="cannot be combined with a delay")
        return Task(self._app, self.spec, options, self._namespace)

    def within(self, namespace: str) -> Task[P, R, T, S]:
        """Return a copy of this task whose submissions belong to another namespace."""
        return Task(self._app, self.spec, self._options, namespace)

    @property
    def on_success(self) -> HookDecorator[Ended[T]]:
        """Register a hook that runs after an execution of this task has succeeded:
        `@task.on_success`.

        A hook is a separate task. The transaction that ends an execution also submits the hook,
        with an `Ended` as its argument. By default the hook is named after this task
        (`shop.buy.on_success`) and runs in the lane of this task.
        """
        return HookDecorator(self._app, HookKind.SUCCESS, self.spec)

    @property
    def on_failure(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of this task has failed, expired or been
        skipped.
        """
        return HookDecorator(self._app, HookKind.FAILURE, self.spec)

    @property
    def on_cancel(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of this task was cancelled."""
        return HookDecorator(self._app, HookKind.CANCEL, self.spec)

    @property
    def on_end(self) -> HookDecorator[Ended[T | None]]:
        """Register a hook that runs after an execution of this task has ended in any way."""
        return HookDecorator(self._app, HookKind.END, self.spec)

    # Python cannot type the arguments of a call together with our options (decision 0026). With an
    # option, the arguments are checked when the call is made. `using(...)` keeps the types.

    @overload
    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[T, S]: ...
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
    ) -> Run[T, S]: ...
    @overload
    async def submit(self, *args: Any, via: object, **kwargs: Any) -> Run[T, S]: ...

    @async_only("task.submit_sync")
    async def submit(self, *args: Any, **kwargs: Any) -> Run[T, S]:
        """Submit an execution of this task. When this call returns, the execution is durable.

        If `via` is a connection, the execution is stored only when the transaction of that
        connection commits.
        """
        task = self._take_options(kwargs) if kwargs else self
        if task._options.key is None and task._options.via is None and not task._limits.is_keyed:
            task._check_needs_no_key()
            return (await task._store_payloads([task.spec.encode(args, kwargs)]))[0]
        submission = task.submission(args, kwargs)
        answers = await task._store([submission])
        return task._unrecorded_runs(answers, [submission])[0]

    @overload
    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[T, S]: ...
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
    ) -> Run[T, S]: ...
    @overload
    def submit_sync(self, *args: Any, via: object, **kwargs: Any) -> Run[T, S]: ...

    def submit_sync(self, *args: Any, **kwargs: Any) -> Run[T, S]:
        """`submit` for synchronous code. Raises an error on a thread that runs an event loop."""
        task = self._take_options(kwargs) if kwargs else self
        submission = task.submission(args, kwargs)
        answers = task._store_sync([submission], "submit")
        return task._unrecorded_runs(answers, [submission])[0]

    @async_only("task.submit_many_sync")
    async def submit_many(
        self, calls: Sequence[tuple[Any, ...]], *, keys: Sequence[str | None] | None = None
    ) -> list[Run[T, S]]:
        """Submit one execution for each tuple of arguments.

        A long list takes several transactions, unless the submissions join a transaction by `via`.
        `keys` are the idempotency keys of the executions, in the same order; None means no key.
        Set options of the keys with `using(unique=..., window=..., on_conflict=...)`.
        """
        if keys is None and calls and not self._limits.is_keyed:
            return await self._store_payloads(self._payloads(calls))
        submissions = self._submissions(calls, keys)
        return self._unrecorded_runs(await self._store(submissions), submissions)

    def submit_many_sync(
        self, calls: Sequence[tuple[Any, ...]], *, keys: Sequence[str | None] | None = None
    ) -> list[Run[T, S]]:
        """`submit_many` for synchronous code."""
        is_alike = keys is None and self._options.via is None and not self._limits.is_keyed
        if is_alike and calls:
            payloads = self._payloads(calls)
            return self._noted(
                self._app.portal.call(
                    lambda: self._store_payloads(payloads), f"{self.__name__}.submit_many(...)"
                )
            )
        submissions = self._submissions(calls, keys)
        return self._unrecorded_runs(self._store_sync(submissions, "submit_many"), submissions)

    def get(self, id: AnyId) -> Run[T, S]:
        """Return the run of the execution that has this whole id or UUID.

        This makes no call to the database. If the execution belongs to another task, reading its
        result raises InvalidInput.
        """

        def decoder(task: str) -> Callable[[bytes | None], T]:
            if task != self.name:
                raise InvalidInput(
                    field="id", problem=f"{run.id.uuid} is an execution of {task}, not {self.name}"
                )
            return self.spec.decode_result

        run = self._app.find_run(id, self.name, self.spec.decode_result, decoder)
        return run

    def _take_options(self, kwargs: dict[str, Any]) -> Task[P, R, T, S]:
        """Move the options out of the keyword arguments, and return a copy of the task with
        these options."""
        own = self.spec.keywords
        given = {
            name: kwargs.pop(name) for name in SUBMIT_OPTIONS if name in kwargs and name not in own
        }
        for name in kwargs:
            if name in _USING_OPTIONS and name not in own and not self.spec.takes_any_keyword:
                raise InvalidInput(
                    field=name,
                    problem=f"is not an argument of {self.name}; if you mean the option, use "
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
            payload = self.spec.encode(args, kwargs)
            return self._submission(mint(), payload, **self.limit_facts(args, kwargs))
        payload, comparable = self.spec.encode_comparable(args, kwargs)
        facts = {**self._keyed(key, comparable), **self.limit_facts(args, kwargs)}
        return self._submission(mint(), payload, **facts)

    def _check_needs_no_key(self) -> None:
        for option in ("unique", "window", "on_conflict"):
            if getattr(self._options, option) is not None:
                raise InvalidInput(field=option, problem="needs a key")

    def limit_facts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a submission that name its quotas, its budgets and its fair key."""
        limits = self._limits
        if limits.is_empty:
            return {}
        arguments = self.spec.bind(args, kwargs) if limits.is_keyed else {}
        app = self._app
        return limits.facts(self._space, self.spec, arguments, app.limits, app.budgets)

    @property
    def _space(self) -> str:
        return self._app.settings.namespace if self._namespace is None else self._namespace

    def node_submission(
        self,
        id: ExecutionId,
        payload: bytes,
        payload_encoding: str | None,
        limit_facts: Mapping[str, Any],
    ) -> Submission:
        """Build the submission for a node of a flow, or for a hook."""
        return self._submission(id, payload, payload_encoding=payload_encoding, **limit_facts)

    def _submission(self, id: ExecutionId, payload: bytes, **facts: Any) -> Submission:
        spec, options = self.spec, self._options
        lane = spec.lane if options.lane is None else options.lane
        if options.tags is not None:
            check_tags(options.tags)
        return Submission(
            id=id,
            route=self._route(self._space, lane),
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

    def run_of(self, submitted: Submitted) -> Run[T, S]:
        """Return the run of a submitted execution."""
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

    def _payloads(self, calls: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Encode the arguments of each call. The calls have no idempotency keys."""
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
        return payloads

    def _shared(self, partition: int) -> Submission:
        """Return a template for the submissions of this task in one partition.

        The submissions differ only in their ids and payloads.
        """
        shared = self._shared_submissions.get(partition)
        if shared is None or shared.route.namespace != self._space:
            shared = self._submission(mint_in(partition), b"", **self.limit_facts((), {}))
            self._shared_submissions[partition] = shared
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
        await client.executions.assign_partitions(submissions)
        if (via := self._options.via) is not None:
            with tracing.send_span(submissions):
                return await submit_via(
                    client, via, submissions, instead=f"{self.__name__}.submit_sync"
                )
        if len(submissions) == 1:
            return [await client.executions.submit(submissions[0])]
        return await client.executions.submit_many(submissions)

    async def _store_payloads(self, payloads: list[bytes]) -> list[Run[T, S]]:
        """Store one execution for each payload, and return the runs. The executions have no key."""
        if self._options.via is not None:
            submissions = [self._submission(mint(), payload) for payload in payloads]
            return self._unrecorded_runs(await self._store(submissions), submissions)
        self._check_has_no_parent()
        client = await self._app.client()
        partitions = client.database.partitions
        minted = (await partitions.current()).minted
        batches = spread_payloads(payloads, self._shared, partitions, minted)
        await client.executions.submit_alike(*batches)
        return self._new_runs(batches)

    def _store_sync(self, submissions: list[Submission], verb: str) -> list[Submitted]:
        self._check_has_no_parent()
        instead = f"{self.__name__}.{verb}"
        call = self._app.portal.call
        if (via := self._options.via) is None:
            return call(lambda: self._store(submissions), f"{instead}(...)")

        def find(asked: Find | None) -> Destination:
            # A synchronous connection needs a thread. Async code can await the thread.
            thread = f"asyncio.to_thread({instead}_sync, ..., via=...)"
            return call(lambda: self._find_destination(submissions, asked), thread)

        with tracing.send_span(submissions):
            return submit_via_sync(find, via, submissions, instead=instead)

    async def _find_destination(
        self, submissions: list[Submission], asked: Find | None
    ) -> Destination:
        client = await self._app.client()
        if asked is not None:
            return await find_again(client, asked)
        await client.executions.assign_partitions(submissions)
        return await client.transactional.find_destination(submissions)

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
    ) -> list[Run[T, S]]:
        """Return the runs of submissions that the journal does not record.

        The next run of the handler submits them again, under new ids, unless they have a key. The
        handler must therefore not pause to wait for these runs.
        """
        pairs = zip(answers, submissions, strict=True)
        unrecorded = [answer.id for answer, submission in pairs if submission.key is None]
        if unrecorded and (handler_run := current_run.get()) is not None:
            handler_run.note_unrecorded(unrecorded)
        return [self._run(answer) for answer in answers]

    def _new_runs(self, batches: Sequence[Alike]) -> list[Run[T, S]]:
        """Return the runs of executions that have just been stored."""
        name, client, decode = self.name, self._app.client, self.spec.decode_result
        call, find_spec = self._app.portal.call, self._find_spec
        return self._noted(
            [
                Run(
                    uuid,
                    name,
                    client,
                    decode,
                    partition=batch.shared.id.partition_key,
                    call=call,
                    find_spec=find_spec,
                )
                for batch in batches
                for uuid in batch.uuids
            ]
        )

    def _noted(self, runs: list[Run[T, S]]) -> list[Run[T, S]]:
        """Tell the running handler, if any, not to pause for these runs. Return the runs."""
        if (handler_run := current_run.get()) is not None:
            handler_run.note_unrecorded(run.id for run in runs)
        return runs

    def _run(self, answer: Submitted) -> Run[T, S]:
        return Run(
            answer.id,
            self.name,
            self._app.client,
            self.spec.decode_result,
            is_duplicate=answer.is_duplicate,
            is_stored=self._options.via is None,
            call=self._app.portal.call,
            find_spec=self._find_spec,
        )

    def _find_spec(self, task: str) -> TaskSpec:
        return self.spec


def _not_arguments(index: int, args: object) -> InvalidInput:
    return InvalidInput(
        field=f"calls[{index}]",
        problem=f"must be a tuple of arguments, as in ({args!r:.40},)",
    )
