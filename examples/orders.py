"""Process an order in steps. A recorded step does not run again, and a failed order is refunded.

python examples/orders.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from flowfabric import App, Context, Fixed, Retry

app = App()


@dataclass(frozen=True)
class Order:
    id: int
    item: str
    price: Decimal


class SoldOut(Exception):
    """The item is sold out; a retry will not help."""


stock = {"lamp": 3, "chair": 0}
ledger: list[str] = []  # everything that the handler did to the outside world, in order


async def charge(order: Order) -> str:
    ledger.append(f"charged {order.price} for order {order.id}")
    return f"payment-{order.id}"


async def reserve(order: Order) -> str:
    if not stock[order.item]:
        raise SoldOut(order.item)
    stock[order.item] -= 1
    ledger.append(f"reserved a {order.item} for order {order.id}")
    return f"parcel-{order.id}"


async def refund(payment: str) -> None:
    ledger.append(f"refunded {payment}")


async def ship(parcel: str) -> str:
    if "the carrier was away" not in ledger:
        ledger.append("the carrier was away")
        raise ConnectionError("no answer from the carrier")
    ledger.append(f"shipped {parcel}")
    return f"track-{parcel}"


@app.task(retry=Retry(max_retries=3, backoff=Fixed(timedelta(milliseconds=50))))
async def process(ctx: Context, order: Order) -> str:
    payment = await ctx.step("charge", charge, order)
    try:
        parcel = await ctx.step("reserve", reserve, order)
    except SoldOut:
        await ctx.step("refund", refund, payment)
        return "refunded"
    await ctx.sleep(timedelta(milliseconds=100))  # packing; the worker is free during the sleep
    # The carrier is away at first, so this attempt fails. The next attempt does not charge or
    # reserve again, because the journal has both steps.
    return await ctx.step("ship", ship, parcel)


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        kept = await process.submit(Order(1, "lamp", Decimal("49.90")))
        broken = await process.submit(Order(2, "chair", Decimal("120.00")))
        print(await kept.result(timeout=60))
        print(await broken.result(timeout=60))
        print(*ledger, sep="\n")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
