"""The tables and tasks of the shop. README.md explains how to run it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flowfabric import App, Context, ExecutionFailed, Retry, provided

app = App(name="shop", version="1")


class Base(DeclarativeBase): ...


class Stock(Base):
    __tablename__ = "stock"
    article: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class Order(Base):
    __tablename__ = "orders"
    reference: Mapped[str] = mapped_column(primary_key=True)
    mail: Mapped[str]
    article: Mapped[str]
    price: Mapped[Decimal]
    state: Mapped[str] = mapped_column(default="new")


class Payments:
    """The payment provider. It charges once per key, however often it is called."""

    async def charge(self, key: str, amount: Decimal) -> str:
        return f"payment {key} of {amount}"

    async def refund(self, payment: str) -> None: ...


class Refused(Exception): ...


@asynccontextmanager
async def open_engine() -> AsyncIterator[AsyncEngine]:
    url = os.environ["FLOWFABRIC_DATABASE_URL"]
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    yield engine
    await engine.dispose()


app.provide(AsyncEngine, open_engine, scope="worker")
app.provide(Payments, Payments, scope="worker")


async def reserve(engine: AsyncEngine, reference: str) -> tuple[str, str, Decimal]:
    async with AsyncSession(engine) as session, session.begin():
        order = await session.get_one(Order, reference, with_for_update=True)
        stock = await session.get_one(Stock, order.article, with_for_update=True)
        if order.state == "new":  # False if the step runs a second time
            if stock.left == 0:
                raise Refused("sold out")
            stock.left, order.state = stock.left - 1, "reserved"
        return order.mail, order.article, order.price


async def end(engine: AsyncEngine, reference: str, state: str) -> str:
    async with AsyncSession(engine) as session, session.begin():
        order = await session.get_one(Order, reference, with_for_update=True)
        if order.state == "reserved" and state != "shipped":
            (await session.get_one(Stock, order.article, with_for_update=True)).left += 1
        order.state = state
    return state


@app.task(lane="orders", retry=Retry(max_retries=5))
async def process(
    ctx: Context, reference: str, engine: AsyncEngine = provided, payments: Payments = provided
) -> str:
    again = Retry(max_retries=3, retry_on=ConnectionError)
    try:
        mail, article, price = await ctx.step("reserve", reserve, engine, reference)
        payment = await ctx.step("charge", payments.charge, reference, price, retry=again)
    except Refused as why:
        return await ctx.step("end", end, engine, reference, str(why))
    async with ctx.flow(app.flow("fulfil", tags={"shop.order": reference})) as f:
        f.add(hand_over, [f.add(pick, thing).result for thing in (article, "leaflet")])
    try:
        parcel = await f.run.result()  # the wait takes no slot of the worker
    except ExecutionFailed:
        await ctx.step("refund", payments.refund, payment, retry=again)
        return await ctx.step("end", end, engine, reference, "refunded")
    await ctx.submit(confirm, mail, parcel)
    return await ctx.step("end", end, engine, reference, "shipped")


@app.task(lane="warehouse", retry=Retry(max_retries=2))
async def pick(thing: str) -> str:
    if thing == "ghost":
        raise LookupError("there is no ghost on the shelf")
    return thing


@app.task(lane="warehouse")
async def hand_over(things: list[str]) -> str:
    return f"parcel with {' and '.join(things)}"


@app.task(lane="mail", retry=Retry(max_retries=10))
async def confirm(mail: str, parcel: str) -> None: ...


@app.cron("0 7 * * 1-5", tz="Europe/Berlin")
@app.task(lane="reports")
async def report(engine: AsyncEngine = provided) -> dict[str, int]:
    async with AsyncSession(engine) as session:
        rows = await session.execute(select(Order.state, func.count()).group_by(Order.state))
        return dict(rows.all())
