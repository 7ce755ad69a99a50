# pyright: strict
"""What both type checkers must accept, and with which types. Read by test_typing.py, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, assert_type

from flowfabric import (
    App,
    CallNext,
    Context,
    Ended,
    EndedError,
    Exponential,
    Fixed,
    Flow,
    FlowRun,
    FlowState,
    Frame,
    Node,
    Retry,
    Rewind,
    Run,
    Task,
    Truncated,
    all_of,
    any_of,
    current,
    first,
    first_of,
    first_sync,
    gather,
    gather_sync,
    provided,
    quorum,
    quorum_of,
    quorum_of_sync,
)
from flowfabric.testing import Harness

app = App()


@dataclass
class Order:
    id: int
    items: list[str]


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(
    name="shop.mail",
    lane="mail",
    priority=3,
    needs={"smtp"},
    retry=Retry(
        max_retries=4,
        backoff=Exponential(initial=timedelta(seconds=2)),
        retry_on=(ConnectionError, TimeoutError),
        never_on=ValueError,
    ),
    timeout=timedelta(minutes=2),
    deadline=timedelta(hours=1),
    max_reclaims=3,
    retention=timedelta(days=7),
    tags={"team.name": "shop"},
    version="2",
)
async def send_mail(to: str, *, body: str) -> str:
    return to + body


@app.task(retry=Retry(backoff=Fixed(timedelta(seconds=1))))
def shout(text: str) -> list[str]:
    return [text.upper()]


@app.task
async def with_context(ctx: Context, user_id: int) -> set[int]:
    return {user_id}


@app.task()
def with_context_too(ctx: Context, order: Order) -> Order | None:
    return order


@app.task
async def store(key: str, value: int) -> None:
    """Its own parameter `key` is the one that is meant."""


class Session: ...


class Pool:
    def __init__(self, session: Session) -> None: ...

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *error: object) -> None: ...


class Opened:
    async def closed_later(self, ctx: Context) -> AsyncGenerator[Session, None]:
        yield Session()

    def closed(self) -> Iterator[Session]:
        yield Session()


async def made() -> Session:
    return Session()


app.provide(Session, Session)
app.provide(Session, made)
app.provide(Session, lambda: Session())
app.provide(Session, Opened().closed)
app.provide(Session, Opened().closed_later)
app.provide(Session, asynccontextmanager(Opened().closed_later))
app.provide(Pool, Pool, scope="worker")


@app.middleware
async def timing(ctx: Context, call_next: CallNext) -> object:
    return await call_next()


@app.on_startup
async def start() -> None: ...


@app.on_shutdown
def stop() -> None: ...


@app.task
async def report(day: int, session: Session = provided) -> int:
    return day


async def provides() -> None:
    assert_type(await (await report.submit(7)).result(), int)
    assert_type(await report(7, session=Session()), int)
    with app.overriding(Session, Session()), app.overriding(Pool, factory=lambda: object()):
        await start()
        stop()


async def submits(connection: object) -> None:
    assert_type(await add.submit(1, 2), Run[int])
    assert_type(await add.submit(a=1), Run[int])
    assert_type(await (await add.submit(1)).result(), int)
    assert_type(await (await add.submit(1)).result(timeout=60), int)
    assert_type(await (await add.submit(1)).result(timedelta(seconds=3)), int)
    assert_type(await (await send_mail.submit("a@x", body="?")).result(), str)
    assert_type(await (await shout.submit("a")).result(), list[str])
    assert_type(await (await with_context.submit(7)).result(), set[int])
    assert_type(await (await with_context_too.submit(Order(1, []))).result(), Order | None)
    assert_type(await store.submit(key="a", value=1), Run[None])


async def options(connection: object) -> None:
    assert_type(await add.submit(1, key="k"), Run[int])
    assert_type(await add.submit(1, b=2, key="k", unique="unfinished"), Run[int])
    assert_type(await add.submit(1, key="k", window=timedelta(hours=1)), Run[int])
    assert_type(await add.submit(1, via=connection), Run[int])
    assert_type(await send_mail.submit("a@x", body="?", key="k", via=connection), Run[str])
    assert_type((await add.submit(1, key="k")).is_duplicate, bool)
    assert_type(await add.using(key="k", via=connection).submit(1), Run[int])
    assert_type(await add.using(priority=3, delay=timedelta(1)).submit(1), Run[int])
    assert_type(await add.submit(1, key="k", on_conflict="existing"), Run[int])
    assert_type(await add.using(key="k", on_conflict="raise").submit(1), Run[int])
    assert_type(await add.submit_many([(1, 2), (3,)]), list[Run[int]])
    assert_type(await add.submit_many([(1, 2), (3,)], keys=["a", None]), list[Run[int]])


async def calls() -> None:
    assert_type(await add(1, 2), int)
    assert_type(shout("a"), list[str])
    assert_type(await with_context(7), set[int])
    plain: Task[[str], list[str], list[str]] = shout
    coroutine: Task[[int], Coroutine[Any, Any, set[int]], set[int]] = with_context
    print(plain, coroutine)


async def runs(run: Run[int]) -> None:
    assert_type(await run.cancel(reason="no longer wanted"), bool)
    assert_type((await run.progress()).percent, int | None)
    async for event in run.events():
        assert_type(event.version, int)
    assert_type(app.get(run.id), Run[Any])
    assert_type(await app.get_by_key("k"), Run[Any])
    assert_type(add.get(run.id), Run[int])
    assert_type(await send_mail.get("an id").result(), str)
    name: str = await run.state()
    print(name)


def synchronous(connection: object) -> None:
    assert_type(add.submit_sync(1), Run[int])
    assert_type(shout.submit_sync(text="a").result_sync(), list[str])
    assert_type(add.submit_sync(1, key="k", via=connection), Run[int])
    assert_type(add.submit_many_sync([(1,)]), list[Run[int]])
    assert_type(add.submit_sync(1).cancel_sync(), bool)


@app.cron("0 9 * * 1-5", tz="Europe/Berlin", misfire="skip")
async def mornings(pages: int = 3) -> str:
    return "x" * pages


@app.every(timedelta(minutes=5), name="pulse")
def pulse(ctx: Context) -> int:
    return ctx.attempt


@app.cron("@daily", args=("you",))
@app.task(lane="mail")
async def greet(name: str) -> bool:
    return bool(name)


async def schedules(ctx: Context) -> None:
    assert_type(await mornings.submit(4), Run[str])
    assert_type(await mornings(), str)
    assert_type(await pulse.submit(), Run[int])
    assert_type(await greet.submit("you"), Run[bool])
    assert_type(await app.fire_schedules(), int)


async def load_number(number: int, *, deep: bool = False) -> dict[str, int]:
    return {"n": number}


def count_letters(text: str) -> int:
    return len(text)


async def book(connection: object, account: str) -> int:
    return len(account)


def book_plainly(connection: object, account: str) -> int:
    return len(account)


@app.task
async def durable(ctx: Context, n: int) -> int:
    assert_type(await ctx.step("load", load_number, n, deep=True), dict[str, int])
    assert_type(await ctx.step("count", count_letters, "text"), int)
    assert_type(await ctx.step("again", load_number, n, retry=Retry(3)), dict[str, int])
    assert_type(await ctx.step("limit", count_letters, "text", timeout=2.5), int)
    assert_type(await ctx.step("p", partial(load_number, n), retry=Retry(3)), dict[str, int])
    assert_type(await ctx.step("partial", partial(count_letters, "text")), int)
    assert_type(await ctx.step("lambda", lambda: 7), int)
    assert_type(await ctx.step("task", add, 1), int)
    assert_type(await ctx.transaction(book, "text"), int)
    assert_type(await ctx.transaction("named", book, account="text"), int)
    assert_type(await ctx.transaction(book_plainly, "text"), int)
    await ctx.transaction("again", book, "text", retry=Retry(3))
    assert_type(ctx.generation, int)
    assert_type(await ctx.step("plain task", shout, "a"), list[str])
    await ctx.sleep(60)
    await ctx.sleep(timedelta(hours=1), name="an hour")
    await ctx.sleep_until(await ctx.now() + timedelta(days=1))
    assert_type(await ctx.now(), datetime)
    assert_type(ctx.random, Random)
    run = await ctx.submit(add, n)
    assert_type(run, Run[int])
    assert_type(await run.result(), int)
    assert_type(await ctx.submit(with_context.using(with_parent=True), user_id=3), Run[set[int]])
    await ctx.progress(50, "half")
    assert_type(current(), Context)
    assert_type(await current.step("c", count_letters, "text"), int)
    return current.attempt


@app.task
def plain(n: int, *, ctx: Context) -> str:
    assert_type(ctx.step_sync("count", count_letters, "text"), int)
    assert_type(ctx.transaction_sync(book_plainly, "text"), int)
    assert_type(ctx.transaction_sync("named", book, "text"), int)
    assert_type(ctx.step_sync("load", load_number, 1), dict[str, int])
    assert_type(ctx.step_sync("again", count_letters, "text", retry=Retry(3), timeout=1), int)
    assert_type(ctx.submit_sync(shout, "a"), Run[list[str]])
    ctx.sleep_sync(1)
    assert_type(ctx.now_sync(), datetime)
    return "x"


@app.task
async def total(numbers: list[int], label: str | None = None) -> str:
    return f"{label} {sum(numbers)}"


@app.task
def measure(text: str | int) -> float:
    return float(text)


async def flows(connection: object) -> None:
    async with app.flow("report", via=connection, tags={"team.name": "shop"}) as f:
        assert_type(f, Flow)
        one = f.add(add, 1, b=2)
        assert_type(one, Node[int])
        assert_type(one.result, int)
        two = f.add(add, one.result)
        mail = f.add(send_mail.using(lane="fast"), "a@x", body="?")
        both = f.add(total, [one.result, two.result], mail.result)
        assert_type(both, Node[str])
        assert_type(f.add(with_context, two.result), Node[set[int]])
        assert_type(f.add(add, 1, after=one, name="again"), Node[int])
        assert_type(f.add(add, 1, name="once more"), Node[int])
        assert_type(f.add(add, 1, after=[one, any_of(two, mail), all_of(one)]), Node[int])
        assert_type(f.add(add, 1, after=quorum(2, one, two, mail, cancel_rest=True)), Node[int])
        assert_type(f.using(after=any_of(one, mail), name="x").add(add, two.result), Node[int])
        assert_type(first_of(one, two), int)
        assert_type(first_of(one, mail, cancel_rest=True), int | str)
        assert_type(first_of(*[one, two, one, two, one]), int)
        assert_type(f.add(measure, first_of(one, mail)), Node[float])
        assert_type(two.after(one, any_of(one, mail)), Node[int])
        late = f.add(store, key="a", value=one.result)
        assert_type(late, Node[None])
    assert_type(f.run, FlowRun)
    assert_type(await f.run.result(both), str)
    assert_type(await f.run.result(one, timeout=3), int)
    print(await f.run.result(timeout=timedelta(seconds=3)), await f.run.result("add"))
    assert_type(await f.run.results(), dict[str, Any])
    assert_type(await f.run.results(return_exceptions=True), dict[str, Any])
    assert_type(f.run.node(one), Run[int])
    assert_type(await f.run.state(), FlowState)
    assert_type(app.get_flow(f.run.id), FlowRun)
    await f.run.cancel("no longer wanted", cancel_policy="cancel_pending", wait=3)


def flows_synchronously() -> None:
    with app.flow("report") as f:
        one = f.add(add, 1)
    assert_type(f.run.result_sync(one), int)
    assert_type(f.run.results_sync(), dict[str, Any])


@app.task
async def joining(ctx: Context) -> list[int]:
    runs = [await ctx.submit(add, n) for n in range(3)]
    assert_type(await gather(runs), list[int])
    assert_type(await first(runs, cancel_rest=True), int)
    assert_type(await quorum_of(2, runs), list[int])
    async with ctx.flow(app.flow("inner")) as f:
        assert_type(f, Flow)
        one = f.add(add, 1)
    assert_type(await f.run.result(one), int)
    return await gather(runs)


@app.task
def joining_synchronously(ctx: Context) -> list[list[str]]:
    runs = [ctx.submit_sync(shout, "a")]
    assert_type(first_sync(runs), list[str])
    assert_type(quorum_of_sync(1, runs), list[list[str]])
    return gather_sync(runs)


async def tested(ff: Harness) -> None:
    run = await ff.submit(add, 1, b=2)
    assert_type(run, Run[int])
    assert_type(await ff.run(run), int)
    assert_type(await ff.run(with_context, 7), set[int])
    assert_type(ff.call(ff.run(shout, "a")), list[str])
    await ff.run_until(run, "delayed")
    await ff.run_until(run, step="charge")
    ff.assert_submitted(add.using(priority=3), b=2, times=None)
    async with app.flow("tested") as f:
        f.add(add, 1)
    print(await ff.run(f.run), await ff.run(f))


@app.task
async def buy(item: str) -> Order:
    return Order(1, [item])


@buy.on_success
async def bought(ended: Ended[Order]) -> int:
    assert_type(ended.result, Order)
    return ended.result.id


@buy.on_failure(retry=Retry(max_retries=3), lane="alerts")
def not_bought(ended: Ended[Order]) -> None:
    assert_type(ended.error, EndedError | None)


@buy.on_cancel
async def undone(ctx: Context, ended: Ended[Any]) -> None:
    await ctx.step("refund", print, ended.arguments["item"])


@buy.on_end(name="shop.every_end")
async def over(ended: Ended[Order | None], letters: Order = provided) -> None:
    assert_type(ended.result, Order | None)


@app.on_failure
async def alert(ended: Ended[Any]) -> str:
    return ended.task


async def hooked(ended: Ended[Order]) -> None:
    assert_type(bought, Task[[Ended[Order]], Coroutine[Any, Any, int], int])
    assert_type(await bought(ended), int)
    assert_type(await alert(ended), str)


@app.task(streams=Order, lane="chat")
async def sell(ctx: Context, items: list[str]) -> int:
    for n, item in enumerate(items):
        await ctx.stream.send(Order(n, [item]))
    return len(items)


async def streamed(ctx: Context, ff: Harness) -> None:
    run = await sell.submit(["book"])
    assert_type(run, Run[int, Order])
    async for one in run.stream(kinds=["event"]):
        assert_type(one, Frame[Order] | Rewind | Truncated)
        if isinstance(one, Frame):
            assert_type(one.data, Order)
    for one in sell.using(priority=1).submit_sync(["book"]).stream_sync():
        assert_type(one, Frame[Order] | Rewind | Truncated)
    assert_type(await sell.submit_many([(["book"],)]), list[Run[int, Order]])
    assert_type(sell.get("id"), Run[int, Order])
    assert_type(await ctx.submit(sell, ["book"]), Run[int, Order])
    assert_type(await ff.frames(await ff.submit(sell, ["book"])), list[Frame[Order]])
    assert_type(await gather([run]), list[int])
    # A task that declares nothing streams anything.
    assert_type(await add.submit(1), Run[int])
    async for other in (await add.submit(1)).stream():
        assert_type(other, Frame[Any] | Rewind | Truncated)


def shown(run: Run[int]) -> None:
    """Take the run of any task with this result, whatever it streams."""


async def showing() -> None:
    shown(await sell.submit(["book"]))
    shown(await add.submit(1))
