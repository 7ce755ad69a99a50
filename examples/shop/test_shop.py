from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from unittest.mock import create_autospec

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from flowfabric.testing import Harness
from shop import Order, Payments, Refused, Stock, app, confirm, process, report
from web import lifespan, web


@pytest.fixture
async def session(ff: Harness) -> AsyncIterator[AsyncSession]:
    async with lifespan(web), AsyncSession(web.state.engine) as session:
        session.add_all(Stock(article=article, left=1) for article in ("lamp", "ghost"))
        await session.commit()
        yield session


async def order(session: AsyncSession, reference: str, article: str) -> str:
    session.add(Order(reference=reference, mail="a@x", article=article, price=Decimal(5)))
    await session.commit()
    return reference


async def test_orders_are_shipped_refused_or_refunded(ff: Harness, session: AsyncSession) -> None:
    payments = create_autospec(Payments, instance=True)
    payments.charge.side_effect = [Refused("declined"), "payment 1", "payment 2"]
    payments.refund.return_value = None
    with app.overriding(Payments, payments):
        assert await ff.run(process, await order(session, "ann", "lamp")) == "declined"
        assert await ff.run(process, await order(session, "bob", "lamp")) == "shipped"
        assert await ff.run(process, await order(session, "cid", "lamp")) == "sold out"
        assert await ff.run(process, await order(session, "dan", "ghost")) == "refunded"
    payments.refund.assert_awaited_once_with("payment 2")
    assert [(await session.get_one(Stock, one)).left for one in ("lamp", "ghost")] == [0, 1]
    ff.assert_submitted(confirm.using(lane="mail"), "a@x", "parcel with lamp and leaflet")


async def test_a_crash_does_not_charge_twice(ff: Harness, session: AsyncSession) -> None:
    payments = create_autospec(Payments, instance=True)
    payments.charge.return_value = "payment 1"
    with app.overriding(Payments, payments):
        run = await ff.submit(process, await order(session, "ann", "lamp"))
        await ff.run_until(run, step="charge")
        await ff.crash_worker()
        assert await ff.run(run) == "shipped"
    payments.charge.assert_awaited_once_with("ann", Decimal(5))


async def test_an_order_put_twice_is_processed_once(ff: Harness, session: AsyncSession) -> None:
    body = {"mail": "a@x", "article": "lamp", "price": "9.50"}
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as browser:
        told = [(await browser.put("/orders/7", json=body)).json() for _ in range(2)]
        assert [one["is_new"] for one in told] == [True, False]
        assert await ff.run(process.get(told[1]["run"])) == "shipped"
        assert (await browser.get("/orders/7")).json()["state"] == "completed"
        assert (await browser.get("/orders/8")).status_code == 404


async def test_the_report_is_made_every_morning(ff: Harness, session: AsyncSession) -> None:
    await order(session, "ann", "lamp")
    await ff.start_schedules(app)
    await ff.skip(days=7)
    await ff.drain()
    (made,) = ff.assert_submitted(report)  # one report for all mornings that passed
    assert await ff.run(report.get(made.id)) == {"new": 1}
