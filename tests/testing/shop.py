"""An app as a user would write it, for the harness to work on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from flowfabric import App, Context, Fixed, Retry

app = App()
DAY = timedelta(days=1)


@dataclass
class Item:
    name: str
    price: Decimal


@app.task
async def greet(name: str, loud: bool = False) -> str:
    return name.upper() if loud else name


@app.task
async def order(item: Item, at: datetime | None = None) -> Decimal:
    return item.price


@app.task(needs={"gpu"})
def double(number: int) -> int:
    return 2 * number


@app.task
async def broken() -> None:
    raise LookupError("no such thing")


@app.task(retry=Retry(max_retries=3, backoff=Fixed(timedelta(hours=1))))
async def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return ctx.attempt


@app.task
async def stuck_at_first(ctx: Context) -> str:
    if ctx.attempt == 1:
        await asyncio.sleep(3600)
    return f"attempt {ctx.attempt}"


@app.task
async def welcome(names: list[str]) -> None:
    for name in names:
        await greet.using(lane="mail", priority=3, tags={"shop.kind": "mail"}).submit(name)


@app.task
async def remind(name: str) -> None:
    await greet.using(delay=3 * DAY, key=f"remind-{name}").submit(name)


@app.task
async def forever() -> None:
    await forever.submit()


charges: list[str] = []


async def charge(name: str) -> str:
    charges.append(name)
    return f"receipt for {name}"


@app.task
async def onboard(ctx: Context, name: str) -> str:
    receipt = await ctx.step("charge", charge, name)
    await ctx.sleep(DAY)
    await ctx.step("thank", greet.function, "thanks")
    return receipt


@app.task
def onboard_plainly(ctx: Context, name: str) -> str:
    receipt = ctx.step_sync("charge", charge, name)
    ctx.sleep_sync(DAY)
    return receipt


@app.task
async def household(ctx: Context, names: list[str]) -> list[str]:
    runs = [await ctx.submit(onboard, name) for name in names]
    return [await run.result() for run in runs]


@app.cron("0 3 * * *", name="nightly")
@app.task
async def report() -> str:
    return "done"
