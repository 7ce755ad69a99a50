"""Ask several providers. The first answer wins, and the other requests are cancelled.

python examples/provider_race.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal

from flowfabric import App, any_of, first_of, quorum

app = App()


@dataclass(frozen=True)
class Quote:
    carrier: str
    price: Decimal


# Simulated carriers: seconds until the answer, and the price.
CARRIERS = {
    "swift": (0.05, Decimal("7.90")),
    "north": (1.0, Decimal("6.50")),
    "river": (3600, Decimal("5.90")),
}


@app.task
async def ask(carrier: str) -> Quote:
    seconds, price = CARRIERS[carrier]
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print(f"{carrier}: told to stop")
        raise
    return Quote(carrier, price)


@app.task
async def ask_the_old_one() -> Quote:
    raise ConnectionError("nobody answers at pony")


@app.task
async def book(quote: Quote) -> str:
    return f"booked {quote.carrier} for {quote.price}"


@app.task
async def compare(quotes: list[Quote | None]) -> str:
    there = sorted((one for one in quotes if one is not None), key=lambda one: one.price)
    return f"{there[0].carrier} is the cheapest of {len(there)}"


@app.task
async def invoice() -> str:
    return "an invoice"


async def race() -> str:
    """Take the first answer. A carrier may fail as long as another one succeeds."""
    async with app.flow("race") as f:
        asked = [f.add(ask, name, name=name) for name in CARRIERS]
        asked.append(f.add(ask_the_old_one))
        f.add(book, first_of(*asked, cancel_rest=True))
    result: str = await f.run.result(timeout=60)
    await f.run.wait(timeout=60)
    for member in (await f.run.graph()).members:
        print(f"{member.name} {member.public_state}")
    return result


async def best_of_two() -> str:
    """Take the first two answers. The result of a later carrier is None."""
    async with app.flow("best of two") as f:
        asked = [f.add(ask, name, name=name) for name in CARRIERS]
        two = quorum(2, *asked, cancel_rest=True)
        f.add(compare, [one.result for one in asked], after=two)
    result: str = await f.run.result(timeout=60)
    return result


async def order_only() -> str:
    """Pass no result: write an invoice as soon as any carrier has answered."""
    async with app.flow("order only") as f:
        asked = [f.add(ask, name, name=name) for name in ("swift", "north")]
        f.add(invoice, after=any_of(*asked, cancel_rest=True))
    result: str = await f.run.result(timeout=60)
    return result


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        print(await race())
        print(await best_of_two())
        print(await order_only())
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
