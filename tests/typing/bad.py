# pyright: strict
"""What both type checkers must reject: the lines marked so, and no others. Never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowfabric import (
    App,
    Context,
    Ended,
    Frame,
    Retry,
    any_of,
    current,
    first,
    first_of,
    gather,
    provided,
    quorum,
    quorum_of,
)
from flowfabric.testing import Harness

app = App()


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(lane="mail")
async def send_mail(to: str, *, body: str) -> str:
    return to + body


@app.task
def shout(text: str) -> list[str]:
    return [text.upper()]


@app.task
async def with_context(ctx: Context, user_id: int) -> set[int]:
    return {user_id}


async def arguments() -> None:
    await add.submit("1")  # bad: the type of an argument
    await add.submit()  # bad: a missing argument
    await add.submit(1, 2, 3)  # bad: one too many
    await add.submit(1, c=2)  # bad: an unknown name
    await send_mail.submit("a@x", "?")  # bad: by position, not by name
    await send_mail.submit("a@x")  # bad: a missing name
    await with_context.submit("7")  # bad: the type behind a context
    add.submit_sync("1")  # bad: synchronously
    await add("1")  # bad: a plain call
    shout(1)  # bad: a plain call


async def results() -> None:
    number: str = await (await add.submit(1)).result()  # bad: the type of the result
    texts: list[int] = await (await shout.submit("a")).result()  # bad: the type of the result
    flag: bool = shout("a")  # bad: what a call returns
    await (await add.submit(1)).result(timeout="long")  # bad: a timeout
    print(number, texts, flag)


async def options(connection: object) -> None:
    await add.submit(1, key=7)  # bad: the type of an option
    await add.submit(1, key="k", unique="always")  # bad: not one of two words
    await add.submit(1, key="k", window=60)  # bad: the type of an option
    await add.submit(1, unique="unfinished")  # bad: without a key
    await add.submit(1, on_conflict="existing")  # bad: without a key
    await add.submit(1, key="k", on_conflict="replace")  # bad: not one of two words
    await add.submit_many([(1,)], keys=[7])  # bad: the type of a key
    result: str = await add.get("id").result()  # bad: the type of the result
    print(result)
    await add.using(priority="high").submit(1)  # bad: the type of an option
    await add.using(hurry=True).submit(1)  # bad: an unknown option
    await add.using(key="k", via=connection).submit("1")  # bad: an argument, with options
    await add.using(key=3).submit(1)  # bad: the type of an option
    await add.using(unique="once").submit(1)  # bad: not one of two words


class Session: ...


@app.task
async def report(day: int, session: Session = provided) -> int:
    return day


async def provides() -> None:
    await report.submit("7")  # bad: an argument beside what is provided
    app.provide(Session, Session, scope="request")  # bad: not one of two words
    app.provide(Session, 3)  # bad: not a factory
    app.provide("Session", Session)  # bad: not a class


@app.middleware  # bad: takes no call_next
async def narrow(ctx: Context) -> None: ...


@app.on_startup  # bad: takes an argument
async def start(app: App) -> None: ...


def retries() -> None:
    Retry(max_retries="4")  # bad: the type of a number
    Retry(retry_on="ConnectionError")  # bad: not a class
    Retry(never_on=(int,))  # bad: not an exception


@app.task(lane=3)  # bad: the type of an option
async def wrong_lane() -> None: ...


@app.task(timeout=3)  # bad: the type of an option
async def wrong_timeout() -> None: ...


@app.task(colour="red")  # bad: an unknown option
async def wrong_option() -> None: ...


LONG = timedelta(days=1)


@app.cron("0 9 * * *")
async def mornings(pages: int = 3) -> str:
    return "x" * pages


async def schedules() -> None:
    await mornings.submit("3")  # bad: the type of an argument of a scheduled task
    app.every(5)  # bad: no timedelta


async def load_number(number: int) -> dict[str, int]:
    return {"n": number}


def count_letters(text: str) -> int:
    return len(text)


async def book(connection: object, account: str) -> int:
    return len(account)


async def durable(ctx: Context) -> None:
    await ctx.step("load", load_number, "7")  # bad: the argument of a step
    await ctx.step("load", load_number)  # bad: a missing argument of a step
    await ctx.step("count", count_letters, 7)  # bad: the argument of a plain step
    text: str = await ctx.step("count", count_letters, "a")  # bad: the type of a step
    await ctx.step("count", count_letters, "a", retry=3)  # bad: no policy
    await ctx.step("count", count_letters, 7, retry=Retry())  # bad: the argument of a retried step
    await ctx.step("load", load_number, retry=Retry())  # bad: a missing argument of a retried step
    await ctx.step("count", count_letters, "a", timeout="2 s")  # bad: no duration
    await ctx.step(7, count_letters, "a")  # bad: no name
    await ctx.transaction(book, 7)  # bad: the argument of a transactional step
    await ctx.transaction("named", book)  # bad: a missing argument of a transactional step
    text = await ctx.transaction(book, "a")  # bad: the type of a transactional step
    await ctx.sleep("1h")  # bad: no time
    await ctx.submit(add, "1")  # bad: the argument of a child
    await ctx.submit(add, c=1)  # bad: an unknown argument of a child
    result: str = await (await ctx.submit(add, 1)).result()  # bad: the result of a child
    await ctx.submit(count_letters, "a")  # bad: no task
    number: str = current.attempt  # bad: the type of what is current
    ctx.step_sync("count", count_letters, 7)  # bad: the argument of a step in a thread
    print(text, result, number)


@app.task
async def total(numbers: list[int]) -> str:
    return str(sum(numbers))


async def flows() -> None:
    async with app.flow("report") as f:
        one = f.add(add, 1)
        mail = f.add(send_mail, "a@x", body="?")
        f.add(add, "1")  # bad: the argument of a node
        f.add(add)  # bad: a missing argument of a node
        f.add(add, 1, c=2)  # bad: an unknown argument of a node
        f.add(add, mail.result)  # bad: a result of another type
        f.add(total, [one.result, mail.result])  # bad: a result of another type in a list
        f.add(add, one)  # bad: a node, not its result
        f.add(add, first_of(one, mail))  # bad: one of the results is of another type
        f.add(count_letters, "a")  # bad: no task
        f.add(add, 1, after="one")  # bad: no node
        f.add(add, 1, after=one.result)  # bad: a result, not its node
        f.add(add, 1, name=7)  # bad: no name
        f.using(after=one).add(add, "1")  # bad: an argument, with options
        f.using(hurry=True)  # bad: an unknown option
        any_of(one, 7)  # bad: no node
        quorum(one, mail)  # bad: without a number
        quorum(2, one, mail, cancel=True)  # bad: an unknown option
    text: str = await f.run.result(one)  # bad: the result of a node
    await f.run.result(7)  # bad: no node
    print(text)


async def joins(ctx: Context) -> None:
    runs = [await ctx.submit(add, 1)]
    texts: list[str] = await gather(runs)  # bad: the results of runs
    text: str = await first(runs)  # bad: the result of a run
    await first(runs[0])  # bad: one run, not several
    await quorum_of(runs)  # bad: without a number
    await gather([add])  # bad: a task, not its run
    print(texts, text)


async def tested(ff: Harness) -> None:
    run = await ff.submit(add, "1")  # bad: the argument of a task under test
    await ff.run(shout, 7)  # bad: the argument of a task under test
    text: str = await ff.run(add, 1)  # bad: the result of a task under test
    await ff.run_until(await ff.submit(add, 1))  # bad: until what
    print(run, text)


@add.on_success  # bad: the result of the task
async def added(ended: Ended[str]) -> None:
    print(ended)


@add.on_end  # bad: an end may have no result
async def summed(ended: Ended[int]) -> None:
    print(ended)


@add.on_failure(hurry=True)  # bad: an unknown option
async def failed(ended: Ended[Any]) -> None:
    print(ended)


@app.on_cancel  # bad: it takes no Ended
async def cancelled(name: str) -> None:
    print(name)


@app.task(streams=int)
async def counting(ctx: Context) -> str:
    return "done"


async def streams() -> None:
    run = await counting.submit()
    async for one in run.stream():
        if isinstance(one, Frame):
            text: str = one.data  # bad: the type that the task streams
            print(text)
        print(one.data)  # bad: a rewind has no value
    items = run.stream_sync()
    texts: list[Frame[str]] = [f for f in items if isinstance(f, Frame)]  # bad: another type
    print(texts)
