"""Providers: parameters given by their type, made and unmade around the run that uses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated

import pytest

from flowfabric import Context, ExecutionFailed, InvalidInput, PublicState, provided
from steps.stage import HOUR, skip, until
from worker.apps import working
from worker.waiting import eventually


class Session:
    """Something that has to be closed."""

    def __init__(self, name: str = "real") -> None:
        self.name = name
        self.log: list[str] = []
        self.thread = threading.current_thread()


class Config:
    def __init__(self) -> None:
        self.url = "db://here"


class Pool:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.log: list[str] = []

    async def __aenter__(self) -> Pool:
        self.log.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.log.append("closed")


class Chicken: ...


class Egg: ...


class Opener:
    """Is entered to get something else."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        self._session.log.append("in")
        return self._session

    def __exit__(self, *error: object) -> None:
        self._session.log.append("out")


async def async_session() -> Session:
    await asyncio.sleep(0)
    return Session()


def opened_and_closed(session: Session, style: str):
    """A factory of each kind that takes something back at the end."""

    async def async_generator() -> AsyncIterator[Session]:
        session.log.append("in")
        yield session
        session.log.append("out")

    def generator() -> Iterator[Session]:
        session.log.append("in")
        yield session
        session.log.append("out")

    return {
        "async generator": async_generator,
        "generator": generator,
        "async context manager": asynccontextmanager(async_generator),
        "context manager": contextmanager(generator),
        "function of a context manager": lambda: Opener(session),
        "partial": partial(Opener, session),
    }[style]


STYLES = [
    "async generator",
    "generator",
    "async context manager",
    "context manager",
    "function of a context manager",
    "partial",
]


@pytest.mark.parametrize("factory", [Session, async_session, lambda: Session(), partial(Session)])
async def test_a_parameter_is_given_by_its_annotation(app, factory):
    app.provide(Session, factory)

    @app.task
    async def greet(name: str, session: Session = provided) -> str:
        return f"{name} {session.name}"

    async with working(app):
        assert await (await greet.submit("ann")).result(timeout=60) == "ann real"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_was_opened_is_closed_after_the_run(app, style, is_async):
    session = Session()
    app.provide(Session, opened_and_closed(session, style))

    if is_async:

        @app.task
        async def use(session: Session = provided) -> str:
            session.log.append("used")
            return session.name
    else:

        @app.task
        def use(session: Session = provided) -> str:
            session.log.append("used")
            return session.name

    async with working(app):
        assert await (await use.submit()).result(timeout=60) == "real"
        assert session.log == ["in", "used", "out"]


async def test_it_may_stand_anywhere_and_is_never_an_argument(app):
    app.provide(Session, Session)

    @app.task
    async def first(session: Session, a: int, ctx: Context, b: int = 5) -> list[str | int]:
        return [session.name, a, ctx.attempt, b]

    @app.task
    async def last(*numbers: int, scale: int = 1, session: Session) -> list[str | int]:
        return [*(scale * n for n in numbers), session.name]

    @app.task
    async def only(session: Annotated[Session, "x"], maybe: Session | None = None) -> bool:
        return session is maybe

    assert list(first.spec.signature.parameters) == ["a", "b"]
    assert first.submission((1,), {}).payload == b'{"a":1}'
    async with working(app):
        assert await (await first.submit(1)).result(timeout=60) == ["real", 1, 1, 5]
        assert await (await last.submit(1, 2, scale=3)).result(timeout=60) == [3, 6, "real"]
        assert await (await only.submit()).result(timeout=60) is True
        with pytest.raises(InvalidInput, match="session"):
            await first.submit(1, session=Session())


async def test_it_may_be_registered_after_the_task(app):
    @app.task
    async def use(a: int, session: Session) -> str:
        return session.name

    app.provide(Session, Session)
    async with working(app):
        assert await (await use.submit(1)).result(timeout=60) == "real"


async def test_one_execution_has_one_value_and_another_has_its_own(app):
    made = []

    def make() -> Session:
        made.append(Session())
        return made[-1]

    def egg(session: Session) -> Egg:
        found = Egg()
        found.session = session
        return found

    app.provide(Session, make)
    app.provide(Egg, egg)

    @app.task
    async def same(session: Session, egg: Egg) -> bool:
        return session is egg.session

    async with working(app):
        assert await (await same.submit()).result(timeout=60) is True
        assert await (await same.submit()).result(timeout=60) is True
    assert len(made) == 2


async def test_a_factory_is_given_the_context_and_what_others_provide(app):
    async def named(ctx: Context, config: Config, retries: int = 3) -> Session:
        return Session(f"{ctx.task} {config.url} {retries}")

    app.provide(Session, named)
    app.provide(Config, Config)

    @app.task(name="shop.use")
    async def use(session: Session) -> str:
        return session.name

    async with working(app):
        assert await (await use.submit()).result(timeout=60) == "shop.use db://here 3"


async def test_they_are_closed_in_reverse_and_see_the_error(app):
    seen = []

    @asynccontextmanager
    async def config() -> AsyncIterator[Config]:
        seen.append("config in")
        try:
            yield Config()
        except LookupError as error:
            seen.append(f"config {error}")
            raise
        finally:
            seen.append("config out")

    def session(config: Config) -> Iterator[Session]:
        seen.append("session in")
        try:
            yield Session()
        finally:
            seen.append("session out")

    app.provide(Config, config)
    app.provide(Session, session)

    @app.task
    async def fail(session: Session) -> None:
        raise LookupError("gone")

    async with working(app):
        with pytest.raises(ExecutionFailed, match="LookupError"):
            await (await fail.submit()).result(timeout=60)
    assert seen == ["config in", "session in", "session out", "config gone", "config out"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_one_that_swallows_errors_makes_no_success_of_a_failure(app, is_async):
    def lenient() -> Iterator[Session]:
        with suppress(ValueError):
            yield Session()

    app.provide(Session, lenient)
    if is_async:

        @app.task
        async def fail(session: Session) -> None:
            raise ValueError("bad")
    else:

        @app.task
        def fail(session: Session) -> None:
            raise ValueError("bad")

    async with working(app):
        with pytest.raises(ExecutionFailed, match="ValueError: bad"):
            await (await fail.submit()).result(timeout=60)


async def test_an_error_of_a_factory_is_a_failure_of_the_attempt(app):
    async def broken() -> Session:
        raise ConnectionError("no database")

    app.provide(Session, broken)

    @app.task
    async def use(session: Session) -> None: ...

    async with working(app):
        with pytest.raises(ExecutionFailed, match="ConnectionError: no database"):
            await (await use.submit()).result(timeout=60)


async def test_an_error_while_closing_is_one_too(app):
    async def session() -> AsyncIterator[Session]:
        yield Session()
        raise ConnectionError("not committed")

    app.provide(Session, session)

    @app.task
    async def use(session: Session) -> str:
        return "done"

    async with working(app):
        with pytest.raises(ExecutionFailed, match="ConnectionError: not committed"):
            await (await use.submit()).result(timeout=60)


async def test_a_plain_task_has_plain_ones_made_in_its_own_thread(app):
    """Connections of some drivers work only where they were made."""
    threads = {}

    def session(config: Config) -> Iterator[Session]:
        yield Session()
        threads["closed"] = threading.current_thread()

    async def config() -> Config:
        threads["config"] = threading.current_thread()
        return Config()

    app.provide(Session, session)
    app.provide(Config, config)

    @app.task
    def use(session: Session, n: int) -> int:
        threads["used"] = threading.current_thread()
        threads["made"] = session.thread
        return n + 1

    async with working(app):
        assert await (await use.submit(1)).result(timeout=60) == 2
    assert threads["config"] is threading.main_thread()
    assert threads["used"] is not threading.main_thread()
    assert threads["made"] is threads["closed"] is threads["used"]


async def test_a_plain_one_that_an_async_one_needs_is_made_on_the_loop(app):
    async def session(config: Config) -> Session:
        return Session(config.url)

    app.provide(Config, Config)
    app.provide(Session, session)

    @app.task
    def use(session: Session) -> str:
        return session.name

    async with working(app):
        assert await (await use.submit()).result(timeout=60) == "db://here"


async def test_something_to_await_in_the_thread_of_a_plain_task_is_explained(app):
    app.provide(Session, lambda: async_session())

    @app.task
    def use(session: Session) -> str:
        return session.name

    @app.task
    async def use_async(session: Session) -> str:
        return session.name

    async with working(app):
        with pytest.raises(ExecutionFailed, match="make the factory an async function"):
            await (await use.submit()).result(timeout=60)
        assert await (await use_async.submit()).result(timeout=60) == "real"


async def test_one_for_the_worker_is_opened_once_before_it_works_and_closed_after_it(app):
    pools = []

    def make(config: Config) -> Pool:
        pools.append(Pool(config))
        return pools[-1]

    app.provide(Config, Config, scope="worker")
    app.provide(Pool, make, scope="worker")
    app.on_shutdown(lambda: pools[-1].log.append("shut down"))

    @app.task
    async def use(pool: Pool) -> str:
        pool.log.append("used")
        return pool.config.url

    @app.task
    def use_plainly(pool: Pool) -> str:
        pool.log.append("used")
        return pool.config.url

    async with working(app) as worker:
        await eventually(lambda: worker.is_idle)
        assert [pool.log for pool in pools] == [["open"]]
        assert await (await use.submit()).result(timeout=60) == "db://here"
        assert await (await use_plainly.submit()).result(timeout=60) == "db://here"
    assert [pool.log for pool in pools] == [["open", "used", "used", "closed", "shut down"]]


async def test_one_for_the_worker_is_left_by_the_task_that_entered_it(app):
    tasks = []

    @asynccontextmanager
    async def session() -> AsyncIterator[Session]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup():
            yield Session()
        tasks.append(asyncio.current_task())

    app.provide(Session, session, scope="worker")

    @app.task
    async def use(session: Session) -> str:
        return session.name

    async with working(app), working(app):
        assert await (await use.submit()).result(timeout=60) == "real"
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_a_worker_does_not_start_when_one_of_its_own_cannot_be_opened(app):
    seen = []

    async def broken() -> Session:
        raise ConnectionError("no database")

    app.provide(Session, broken, scope="worker")
    app.on_shutdown(lambda: seen.append("down"))

    @app.task
    async def use(session: Session) -> None: ...

    run = await use.submit()
    with pytest.raises(ConnectionError, match="no database"):
        await asyncio.wait_for(app.run_worker(), 60)
    assert seen == ["down"]
    assert await run.state() == "waiting"


async def refusal(app) -> str:
    with pytest.raises(InvalidInput) as caught:
        await asyncio.wait_for(app.run_worker(), 60)
    return str(caught.value)


async def test_a_worker_does_not_start_without_a_provider(app):
    @app.task(name="shop.use")
    async def use(session: Session = provided) -> None: ...

    text = await refusal(app)
    assert "shop.use" in text
    assert "its parameter session takes a Session, but nothing provides one" in text


async def test_a_worker_does_not_start_if_an_argument_could_never_travel(app):
    @app.task(name="shop.use")
    async def use(session: Session) -> None: ...

    text = await refusal(app)
    assert "shop.use" in text
    assert "Session" in text
    assert "app.provide" in text


async def test_a_worker_does_not_start_if_a_factory_cannot_be_served(app):
    async def session(config: Config) -> Session:
        return Session()

    app.provide(Session, session)

    @app.task
    async def use(session: Session) -> None: ...

    text = await refusal(app)
    assert "the factory of Session" in text
    assert "its parameter config takes a Config" in text


async def test_a_worker_does_not_start_on_a_circle(app):
    def chicken(egg: Egg) -> Chicken: ...

    def egg(chicken: Chicken) -> Egg: ...

    app.provide(Chicken, chicken)
    app.provide(Egg, egg)

    @app.task
    async def use(egg: Egg) -> None: ...

    assert "Egg → Chicken → Egg" in await refusal(app)


@pytest.mark.parametrize("wants", ["context", "execution"])
async def test_what_lives_with_the_worker_cannot_rest_on_an_execution(app, wants):
    def of_context(ctx: Context) -> Session: ...

    def of_config(config: Config) -> Session: ...

    app.provide(Config, Config)
    app.provide(Session, of_context if wants == "context" else of_config, scope="worker")

    @app.task
    async def use(session: Session) -> None: ...

    text = await refusal(app)
    assert "the factory of Session" in text
    assert ("a Context" if wants == "context" else "a Config") in text


async def test_a_factory_without_hints_is_refused(app):
    app.provide(Session, lambda x: Session())

    @app.task
    async def use(session: Session) -> None: ...

    assert "its parameter x has no type hint" in await refusal(app)


@pytest.mark.parametrize(
    ("wanted", "factory", "options", "told"),
    [
        (str, str, {}, "str cannot be provided"),
        (Context, Session, {}, "Context cannot be provided"),
        ("Session", Session, {}, "must be a class"),
        (Session, None, {}, "must be a callable"),
        (Session, Session, {"scope": "request"}, "must be 'execution' or 'worker'"),
    ],
)
def test_a_bad_registration_is_refused(app, wanted, factory, options, told):
    with pytest.raises(InvalidInput, match=told):
        app.provide(wanted, factory, **options)


def test_a_type_has_one_provider(app):
    app.provide(Session, Session)
    with pytest.raises(InvalidInput, match="Session already has a provider"):
        app.provide(Session, async_session)


async def test_a_test_can_give_something_else_for_a_while(app):
    app.provide(Session, Session)

    @app.task
    async def use(session: Session = provided) -> str:
        return session.name

    fake = Session("fake")
    async with working(app):
        with app.overriding(Session, fake):
            assert await (await use.submit()).result(timeout=60) == "fake"
            with app.overriding(Session, factory=lambda: Session("made")):
                assert await (await use.submit()).result(timeout=60) == "made"
            assert await (await use.submit()).result(timeout=60) == "fake"
        assert await (await use.submit()).result(timeout=60) == "real"


async def test_a_value_given_instead_is_not_opened_or_closed(app):
    app.provide(Config, Config, scope="worker")
    app.provide(Pool, Pool, scope="worker")

    @app.task
    async def use(pool: Pool = provided) -> list[str]:
        return pool.log

    fake = Pool(Config())
    with app.overriding(Pool, fake):
        async with working(app):
            assert await (await use.submit()).result(timeout=60) == []
    assert fake.log == []


async def test_what_rests_on_something_replaced_is_made_anew(app):
    app.provide(Config, Config, scope="worker")
    app.provide(Pool, Pool, scope="worker")

    @app.task
    async def use(pool: Pool = provided) -> str:
        return pool.config.url

    other = Config()
    other.url = "db://test"
    async with working(app):
        assert await (await use.submit()).result(timeout=60) == "db://here"
        with app.overriding(Config, other):
            assert await (await use.submit()).result(timeout=60) == "db://test"
        assert await (await use.submit()).result(timeout=60) == "db://here"


async def test_a_type_nobody_provides_can_be_given_in_a_test(app):
    @app.task
    async def use(session: Session) -> str:
        return session.name

    with app.overriding(Session, Session("fake")):
        async with working(app):
            assert await (await use.submit()).result(timeout=60) == "fake"
    with pytest.raises(InvalidInput, match="session"):
        await use.submit()


async def test_a_direct_call_passes_it_like_any_argument(app):
    app.provide(Session, Session)

    @app.task
    async def use(n: int, session: Session = provided) -> str:
        return f"{n} {session.name}"

    assert await use(1, session=Session("mine")) == "1 mine"
    with pytest.raises(AttributeError, match="only a worker provides"):
        await use(1)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_run_that_pauses_gives_everything_back_and_is_given_it_anew(app, clock, is_async):
    seen = []

    def session() -> Iterator[Session]:
        seen.append("in")
        try:
            yield Session()
        finally:
            seen.append("out")

    @app.middleware
    async def watch(ctx, call_next):
        seen.append("begins")
        try:
            return await call_next()
        finally:
            seen.append("ends")

    app.provide(Session, session)
    if is_async:

        @app.task
        async def nap(ctx: Context, session: Session = provided) -> str:
            await ctx.sleep(HOUR)
            return session.name
    else:

        @app.task
        def nap(ctx: Context, session: Session = provided) -> str:
            ctx.sleep_sync(HOUR)
            return session.name

    async with working(app):
        run = await nap.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == "real"
    assert seen == ["begins", "in", "out", "ends"] * 2
