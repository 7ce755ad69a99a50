"""Handlers that stream: what they send, and what readers get (ctx.stream, run.stream)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flowfabric import (
    Context,
    ExecutionFailed,
    Fixed,
    Frame,
    InvalidInput,
    PublicState,
    Retry,
    Rewind,
    StreamPolicy,
    Truncated,
)
from flowfabric.client import results
from flowfabric.client import streams as streams_module
from flowfabric.core.errors import ExecutionNotFound, StreamFull, Unavailable
from flowfabric.core.states import StreamMode
from steps.stage import skip, until
from support.database import home
from support.streams import append
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)
OUR_CONNECTIONS = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and application_name like 'flowfabric%'"
)
AT_ONCE = Retry(max_retries=3, backoff=Fixed(delay=timedelta(0)))


class Token(BaseModel):
    text: str
    logprob: float = 0.0


async def collect(run: Any, **given: Any) -> list[Any]:
    async with asyncio.timeout(30):
        return [item async for item in run.stream(**given)]


def texts(items: list[Any]) -> list[str]:
    """The texts of the frames, with every rewind as `<`."""
    return ["<" if isinstance(one, Rewind) else one.text for one in items]


def valid(items: list[Any]) -> list[str]:
    """The texts that a reader has in the end, if it obeys the rewinds."""
    kept: list[Frame[Any]] = []
    for one in items:
        if isinstance(one, Rewind):
            ids = [frame.id for frame in kept]
            kept = kept[: ids.index(one.to) + 1] if one.to in ids else []
        else:
            kept.append(one)
    return [one.text for one in kept]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_a_handler_sends_is_read_in_order_until_its_end(app, kind):
    if kind == "async":

        @app.task(name="say")
        async def say(ctx: Context) -> int:
            for n in range(50):
                await ctx.stream.send(f"t{n}")
            await ctx.stream.send(b"\xff\x00")
            await ctx.stream.send({"n": 1}, kind="delta", correlation_id="c")
            return 7

    else:

        @app.task(name="say")
        def say(ctx: Context) -> int:
            for n in range(50):
                ctx.stream.send_sync(f"t{n}")
            ctx.stream.send_sync(b"\xff\x00")
            ctx.stream.send_sync({"n": 1}, kind="delta", correlation_id="c")
            return 7

    run = await say.submit()
    reading = asyncio.create_task(collect(run))
    async with working(app):
        assert await run.result(timeout=30) == 7
    items = await reading
    assert [one.text for one in items[:50]] == [f"t{n}" for n in range(50)]
    blob, delta = items[50:]
    assert (blob.data, blob.kind, blob.mode) == (b"\xff\x00", "blob", StreamMode.DURABLE)
    assert (delta.data, delta.kind, delta.correlation_id) == ({"n": 1}, "delta", "c")
    assert {one.kind for one in items[:50]} == {"text"}
    assert await collect(run) == items
    assert await collect(run, since=items[48].id) == items[49:]
    assert await collect(run, kinds=["delta"]) == [delta]
    assert await run.state() is PublicState.COMPLETED


async def test_a_reader_in_synchronous_code_gets_the_same(app):
    @app.task
    async def say(ctx: Context) -> None:
        await ctx.stream.send("a")
        await ctx.stream.summary({"done": True})

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    assert [one.text for one in await asyncio.to_thread(lambda: list(run.stream_sync()))] == [
        "a",
        '{"done":true}',
    ]
    assert await asyncio.to_thread(run.summary_sync) == {"done": True}


async def test_a_declared_type_is_checked_and_read_back(app):
    @app.task(streams=Token)
    async def say(ctx: Context) -> str:
        await ctx.stream.send(Token(text="a", logprob=-1))
        with pytest.raises(InvalidInput, match="does not fit the stream"):
            await ctx.stream.send({"logprob": "x"})
        return "ok"

    run = await say.submit()
    async with working(app):
        assert await run.result(timeout=30) == "ok"
    (frame,) = await collect(run)
    assert frame.data == Token(text="a", logprob=-1)
    (again,) = await collect(app.get(str(run.id)))
    assert again.data == frame.data


async def test_a_stored_frame_of_another_type_says_how_to_read_on(app, db):
    @app.task(streams=Token)
    async def say(ctx: Context) -> None:
        for text in "ab":
            await ctx.stream.send(Token(text=text))

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    # As newer code with another type would find it.
    await db.execute("""update ff.stream_chunk set payloads[1] = '{"word": "a"}'""")
    with pytest.raises(InvalidInput, match="does not fit its type") as raised:
        await collect(run)
    since = raised.value.problem.split("'")[-2]
    assert [one.data for one in await collect(run, since=since)] == [Token(text="b")]


async def test_the_summary_is_a_living_document(app):
    @app.task
    async def work(ctx: Context) -> None:
        await ctx.stream.summary({"step": 1, "found": {"a": 1}})
        await ctx.stream.send("between")
        await ctx.stream.summary({"step": 2, "found": {"b": 2, "a": None}, "note": "__ff_null__"})

    run = await work.submit()
    assert await run.summary() is None
    async with working(app):
        await run.result(timeout=30)
    assert await run.summary() == {"step": 2, "found": {"b": 2}, "note": None}
    versions = [(one.mode, one.summary_version) for one in await collect(run)]
    assert versions == [("summary", 1), ("durable", None), ("summary", 2)]
    with pytest.raises(ExecutionNotFound):
        await app.get(f"{{fp:{home()}}}:018bd12c-58b0-7683-8a5b-8752d0e86651").summary()


async def test_what_cannot_be_sent_is_refused_at_once_and_names_its_field(app):
    seen: dict[str, str] = {}

    @app.task
    async def wrong(ctx: Context) -> None:
        deep: dict[str, Any] = {}
        for _ in range(20):
            deep = {"a": deep}
        stream = ctx.stream
        calls = {
            "large": lambda: stream.send("x" * 65_537),
            "kind": lambda: stream.send("x", kind=""),
            "surrogate": lambda: stream.send("\ud800"),
            "object": lambda: stream.send(object()),
            "patch": lambda: stream.summary([1]),  # type: ignore[arg-type]
            "deep": lambda: stream.summary(deep),
            "nul": lambda: stream.summary({"a": "\0"}),
            "ttl": lambda: stream.best_effort("x", ttl=0),
        }
        for name, call in calls.items():
            try:
                await call()
            except InvalidInput as error:
                seen[name] = f"{type(error).__name__} {error.field}"
        with pytest.raises(RuntimeError, match="await"):
            stream.send_sync("x")

    run = await wrong.submit()
    async with working(app):
        await run.result(timeout=30)
    assert seen == {
        "large": "PayloadTooLarge value",
        "kind": "InvalidInput kind",
        "surrogate": "InvalidInput value",
        "object": "InvalidInput value",
        "patch": "InvalidInput patch",
        "deep": "InvalidInput patch",
        "nul": "InvalidInput patch",
        "ttl": "InvalidInput ttl",
    }
    assert await collect(run) == []


async def test_a_failed_attempt_has_stored_its_frames_and_the_next_one_rewinds(app):
    @app.task(retry=AT_ONCE)
    async def say(ctx: Context) -> None:
        await ctx.stream.send(f"a{ctx.attempt}")
        await ctx.stream.send(f"b{ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    items = await collect(run)
    assert texts(items) == ["a1", "b1", "<", "a2", "b2"]
    assert items[2].to == "0-0"
    assert [one.attempt for one in items] == [1, 1, 2, 2, 2]


async def test_frames_before_a_recorded_step_are_sent_once(app):
    @app.task(retry=AT_ONCE)
    async def say(ctx: Context) -> None:
        await ctx.stream.send("before")

        async def inside() -> None:
            await ctx.stream.send(f"inside{ctx.attempt}")

        await ctx.step("one", inside)
        await ctx.stream.send(f"after{ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    items = await collect(run)
    assert texts(items) == ["before", "inside1", "after1", "<", "after2", "<", "after3"]
    assert {one.to for one in items if isinstance(one, Rewind)} == {items[1].id}
    assert valid(items) == ["before", "inside1", "after3"]


async def test_a_sleep_restarts_the_handler_in_the_same_attempt_without_a_rewind(app, clock):
    starts: list[int] = []

    @app.task
    async def say(ctx: Context) -> None:
        starts.append(ctx.attempt)
        await ctx.stream.send("before")
        await ctx.sleep(HOUR)
        await ctx.stream.send("after")

    run = await say.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        assert texts((await (await app.client()).streams.read(run.id)).items) == ["before"]
        await skip(app, clock, HOUR)
        await run.result(timeout=30)
    assert starts == [1, 1]
    assert texts(await collect(run)) == ["before", "after"]


async def test_a_run_that_stopped_before_its_sleep_was_recorded_sends_again(app, clock):
    """A signal wait is a journal entry as well: frames before it are kept."""

    @app.task
    async def say(ctx: Context) -> str:
        await ctx.stream.send("ask")
        answer = await ctx.wait_for_signal("go", str)
        await ctx.stream.send(f"got {answer}")
        await ctx.sleep(HOUR)
        await ctx.stream.send("slept")
        return answer

    run = await say.submit()
    async with working(app):
        await until(run, PublicState.SUSPENDED)
        await run.signal("go", "x")
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        await run.result(timeout=30)
    assert texts(await collect(run)) == ["ask", "got x", "slept"]


async def test_a_reader_that_joins_late_gets_everything_and_waits_for_more(app):
    gate = asyncio.Event()

    @app.task
    async def say(ctx: Context) -> None:
        await ctx.stream.send("early")
        await gate.wait()
        await ctx.stream.send("late")

    run = await say.submit()
    async with working(app):
        frames = run.stream()
        assert (await anext(frames)).text == "early"
        other = run.stream()
        assert (await anext(other)).text == "early"
        gate.set()
        assert (await anext(frames)).text == "late"
        assert [one.text async for one in other] == ["late"]
        assert [one async for one in frames] == []


async def test_all_readers_of_a_process_share_one_connection(
    make_app, engine, make, db, monkeypatch
):
    """It listens for all of them, reads for all of them, and is closed when they are gone."""
    monkeypatch.setattr(results, "LINGER_SECONDS", 0.0)
    held = [await make.execution("leased") for _ in range(3)]
    for one in held:
        await append(engine, one.lease, b"early")
    app = make_app(namespace=engine.namespace)
    readers = [app.get(f"{{fp:{home()}}}:{one.id}").stream() for one in held for _ in range(100)]
    async with asyncio.timeout(60):
        first = await asyncio.gather(*map(anext, readers))
        assert {one.text for one in first} == {"early"}
        rest = [asyncio.create_task(anext(reader, None)) for reader in readers]
        assert await db.fetchval(OUR_CONNECTIONS) == 1
        for one in held:
            await append(engine, one.lease, b"late", no=1)
        assert {one.text for one in await asyncio.gather(*rest)} == {"late"}
        assert await db.fetchval(OUR_CONNECTIONS) == 1
        for one in held:
            await engine.complete(one.lease)
        assert {await anext(reader, None) for reader in readers} == {None}
        await eventually(lambda: db.fetchval(f"select ({OUR_CONNECTIONS}) = 0"))


async def test_what_is_no_json_comes_as_text_and_ends_no_reader(make_app, engine, make, db):
    """Another program stored it. The other readers of the process read on, whatever it says."""
    hostile, other = [await make.execution("leased") for _ in range(2)]
    deep = [b"[" * n + b"]" * n for n in (201, 980, 30_000)]
    wrong = [b"{", b"NaN", *deep, b"[" * 60_000, b"\xff", b"9" * 5_000]
    await append(engine, hostile.lease, *wrong, b'{"n": 1}', encoding="json", kind="a\nb")
    await append(engine, other.lease, b"early")
    app = make_app(namespace=engine.namespace)
    frames, reader = [app.get(f"{{fp:{home()}}}:{one.id}").stream() for one in (hostile, other)]
    async with asyncio.timeout(60):
        assert (await anext(reader)).text == "early"
        for payload in wrong:
            assert (await anext(frames)).data == payload.decode("utf-8", "replace")
        assert (await anext(frames)).data == {"n": 1}
        for hint in ("\u00b2 x", "9" * 5_000, "0 x", "0 ////", "", "-1 *"):
            await db.fetch("select pg_notify('ff_stream', $1)", hint)
        await append(engine, other.lease, b"late", no=1)
        assert (await anext(reader)).text == "late"
        for one in (hostile, other):
            await engine.complete(one.lease)
        assert [await anext(one, None) for one in (frames, reader)] == [None, None]


async def test_a_page_of_some_kinds_says_where_to_read_on(make_app, engine, make):
    held = await make.execution("leased")
    for number, kind in enumerate(["x", "x", "x", "wanted", "x", "wanted", "x"]):
        await append(engine, held.lease, b"%d" % number, no=number, kind=kind)
    streams = (await make_app(namespace=engine.namespace).client()).streams
    found, since = [], None
    for _ in range(2):
        page = await streams.read(
            f"{{fp:{home()}}}:{held.id}", since=since, kinds=["wanted"], limit=1
        )
        found += [one.text for one in page.items]
        since = page.cursor
        assert since == page.items[-1].id
    assert (found, page.is_ended) == (["3", "5"], False)
    page = await streams.read(f"{{fp:{home()}}}:{held.id}", since=since, kinds=["wanted"])
    assert (page.items, page.is_ended) == ([], False)
    assert page.cursor > since


async def test_a_page_of_a_rare_kind_takes_few_queries_and_looks_at_a_part(
    make_app, engine, make, monkeypatch
):
    """One request must not read a long stream whole, nor frame by frame."""
    held = await make.execution("leased")
    for number in range(12):
        await append(engine, held.lease, b"x", no=number, kind="x")
    client = await make_app(namespace=engine.namespace).client()
    call, calls = client.database.call, []

    async def counted(statement, **arguments):
        calls.append(statement.name)
        return await call(statement, **arguments)

    monkeypatch.setattr(client.database, "call", counted)
    id = f"{{fp:{home()}}}:{held.id}"
    page = await client.streams.read(id, kinds=["rare"], limit=1)
    assert (page.items, calls) == ([], ["read_streams"] * 2)
    monkeypatch.setattr(streams_module, "PAGE_FRAMES", 1)
    calls.clear()
    page = await client.streams.read(id, kinds=["rare"], limit=1)
    assert (page.items, page.is_ended, len(calls)) == ([], False, streams_module.MOST_READS)
    rest = await client.streams.read(id, since=page.cursor)
    assert len(rest.items) == 12 - streams_module.MOST_READS


async def test_a_reader_of_a_closed_client_is_told(make_app, engine, make, db):
    held = await make.execution("leased")
    await append(engine, held.lease, b"early")
    app = make_app(namespace=engine.namespace)
    client = await app.client()
    frames = client.streams.follow(f"{{fp:{home()}}}:{held.id}")
    assert (await anext(frames)).text == "early"
    waiting = asyncio.create_task(anext(frames))
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    with pytest.raises(Unavailable, match="closed"):
        await anext(client.streams.follow(f"{{fp:{home()}}}:{held.id}"))
    assert await db.fetchval(OUR_CONNECTIONS) == 0


async def test_a_capped_stream_tells_readers_what_is_gone(app):
    @app.task(stream_policy=StreamPolicy(max_frames=50))
    async def say(ctx: Context) -> None:
        for n in range(400):
            await ctx.stream.send(str(n))
            if n % 20 == 0:
                await ctx.step(f"step {n}", lambda: None)  # stores the frames

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    first, *frames = await collect(run)
    assert isinstance(first, Truncated)
    numbers = [int(one.text) for one in frames]
    assert numbers == list(range(numbers[0], 400))
    assert 50 <= len(numbers) < 150
    assert await collect(run, since=frames[3].id) == frames[4:]


async def test_a_full_stream_fails_the_attempt(app):
    @app.task(stream_policy=StreamPolicy(max_bytes=1000))
    async def say(ctx: Context) -> None:
        for _ in range(30):
            await ctx.stream.send("x" * 100)

    run = await say.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed) as raised:
            await run.result(timeout=30)
    assert StreamFull.__name__ in raised.value.type


async def test_a_policy_that_makes_no_sense_is_refused(app):
    for policy, field in (
        (StreamPolicy(max_frames=0), "stream_policy.max_frames"),
        (StreamPolicy(max_bytes="1"), "stream_policy.max_bytes"),  # type: ignore[arg-type]
        (StreamPolicy(retention=3), "stream_policy.retention"),  # type: ignore[arg-type]
        (1000, "stream_policy"),
    ):
        with pytest.raises(InvalidInput) as raised:
            app.task(name="x", stream_policy=policy)(lambda: None)  # type: ignore[arg-type]
        assert raised.value.field == field
    with pytest.raises(InvalidInput) as raised:
        app.task(name="x", streams=type("Plain", (), {}))(lambda: None)
    assert raised.value.field == "streams"


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_log_of_a_handler_becomes_frames_and_only_its_own(app, kind):
    logger = logging.getLogger("shop")

    def talk(ctx: Context, name: str) -> None:
        logger.info("hello %s", name)
        logger.debug("not this")
        logging.getLogger("flowfabric.engine").warning("nor this")

    if kind == "async":

        @app.task(name="say", retry=AT_ONCE)
        async def say(ctx: Context, name: str) -> None:
            with ctx.stream.logs():
                talk(ctx, name)
                await asyncio.sleep(0)
            if ctx.attempt == 1:
                raise ValueError

    else:

        @app.task(name="say", retry=AT_ONCE)
        def say(ctx: Context, name: str) -> None:
            with ctx.stream.logs():
                talk(ctx, name)
            if ctx.attempt == 1:
                raise ValueError

    runs = [await say.submit(name) for name in ("a", "b")]
    async with working(app, concurrency=2):
        for run in runs:
            await run.result(timeout=30)
    logger.info("nobody listens")
    for run, name in zip(runs, ("a", "b"), strict=True):
        items = await collect(run, kinds=["log"])
        frame = {"level": "INFO", "logger": "shop", "message": f"hello {name}"}
        assert [one.data for one in items if isinstance(one, Frame)] == [frame, frame]
        assert sum(isinstance(one, Rewind) for one in items) == 1


async def test_a_bad_or_a_long_log_line_does_not_fail_the_handler(app, monkeypatch):
    """As with every other handler of the library `logging`."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("shop")

    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no text")

    @app.task(name="say")
    async def say(ctx: Context) -> None:
        with ctx.stream.logs():
            logger.info("%d items", "three")
            logger.info("%s", Unprintable())
            logger.info("\U0001f600" * 20_000)
            logger.info("after")

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    long, after = (one.data["message"] for one in await collect(run))
    assert (set(long), after) == ({"\U0001f600"}, "after")
    assert len(long) >= 5000


async def test_best_effort_frames_can_be_left_out(app):
    @app.task
    async def say(ctx: Context) -> None:
        await ctx.stream.best_effort("cursor", ttl=5)
        await ctx.stream.send("kept")

    run = await say.submit()
    async with working(app):
        await run.result(timeout=30)
    assert texts(await collect(run)) == ["cursor", "kept"]
    assert texts(await collect(run, best_effort=False)) == ["kept"]


async def test_a_stream_of_nobody_is_not_found_and_a_wrong_id_is_refused(app):
    with pytest.raises(ExecutionNotFound):
        await collect(app.get(f"{{fp:{home()}}}:018bd12c-58b0-7683-8a5b-8752d0e86651"))

    @app.task
    async def say(ctx: Context) -> None: ...

    run = await say.submit()
    for wrong in ("start", "1", "-1-0", "1-0x"):
        with pytest.raises(InvalidInput) as raised:
            await collect(run, since=wrong)
        assert raised.value.field == "since"
    with pytest.raises(InvalidInput) as raised:
        await collect(run, kinds="text")
    assert raised.value.field == "kinds"
    async with working(app):
        await run.result(timeout=30)
    assert await collect(run) == []
