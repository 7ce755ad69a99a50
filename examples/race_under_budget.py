"""Let providers race under one budget: an answer that is too expensive is not bought.

python examples/race_under_budget.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal

from flowfabric import App, Budget, BudgetExceeded, Context, FlowRun, PublicState, first_of

app = App()

# Simulated providers: seconds until the answer, and its price.
PROVIDERS = {
    "swift": (0.05, Decimal("0.40")),
    "north": (3600, Decimal("0.25")),
    "luxury": (0.01, Decimal("7.00")),
}


@app.task(budget=Budget("answers", key="customer", usd="1.00", period="day"))
async def ask(ctx: Context, customer: str, provider: str, question: str) -> str:
    seconds, price = PROVIDERS[provider]
    try:
        await ctx.usage(usd=price)  # before the call, so that no call exceeds the budget
    except BudgetExceeded:
        print(f"{provider}: too expensive for {customer}")
        raise
    await asyncio.sleep(seconds)
    return f"{provider} says: {question}? Yes."


@app.task
async def answer(text: str) -> str:
    return text


async def race(customer: str, question: str, providers: Sequence[str]) -> FlowRun:
    """Ask several providers, and take the first answer; the others are cancelled."""
    async with app.flow("race") as f:
        asked = [f.add(ask, customer, name, question, name=name) for name in providers]
        f.add(answer, first_of(*asked, cancel_rest=True))
    return f.run


async def states(run: FlowRun) -> set[PublicState]:
    return {one.public_state for one in (await run.graph()).members if one.name in PROVIDERS}


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        first = await race("acme", "Is it raining", ["swift", "north", "luxury"])
        await first.wait(timeout=60)
        print(await first.result())
        client = await app.client()
        budget = await client.budgets.get("answers", key="acme")
        print(f"spent at most 1.00: {budget.usage['usd'] <= budget.hard_limits['usd']}")
        # The refused report has shut the budget until its next reset, so no call starts.
        second = await race("acme", "Is it late", ["swift", "north"])
        while await states(second) != {PublicState.RATE_LIMITED}:
            await asyncio.sleep(0.05)
        print("the second race waits for the budget")
        await client.budgets.reset("answers", key="acme", reason="a new day")
        print(await second.result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
