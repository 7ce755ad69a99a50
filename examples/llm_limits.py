"""Limit calls of a language model by rate. Each customer has two calls at once, and a token budget.

python examples/llm_limits.py
"""

from __future__ import annotations

import asyncio
from collections import Counter

from flowfabric import App, Budget, Context, FlowFabric, Limit, PublicState, Run

app = App()

# How many calls run now, and the most that ran at once, by customer.
running: Counter[str] = Counter()
most: Counter[str] = Counter()


async def complete(prompt: str) -> tuple[str, int]:
    """Simulate a language model: return an answer, and the tokens that it cost."""
    await asyncio.sleep(0.02)
    return f"{prompt}? Yes.", 100


@app.task(
    limit=[
        Limit("llm", rate="200/s"),  # what the provider allows, for everybody together
        Limit("customer", concurrency=2, key="customer"),  # two at once for each customer
    ],
    budget=Budget("tokens", key="customer", tokens=500, period="month", on_exceed="suspend"),
)
async def ask(ctx: Context, customer: str, prompt: str) -> str:
    running[customer] += 1
    most[customer] = max(most[customer], running[customer])
    try:
        answer, tokens = await ctx.step("complete", complete, prompt)
    finally:
        running[customer] -= 1
    await ctx.usage(tokens=tokens)
    return answer


async def waiting(runs: list[Run[str]]) -> int:
    """Count the runs that wait for room."""
    states = [await run.state() for run in runs]
    return states.count(PublicState.RATE_LIMITED)


async def show(client: FlowFabric, customer: str) -> None:
    budget = await client.budgets.get("tokens", key=customer)
    print(f"{customer}: {budget.usage['tokens']} of {budget.hard_limits['tokens']} tokens")


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        acme = await ask.submit_many([("acme", f"question {n}") for n in range(8)])
        beta = await ask.submit_many([("beta", f"question {n}") for n in range(3)])
        for run in beta:  # acme has more work than its budget allows; beta does not wait for acme
            await run.result(timeout=60)
        while await waiting(acme) < 3:  # five answers fit; three runs wait for the budget
            await asyncio.sleep(0.05)
        client = await app.client()
        await show(client, "acme")
        await show(client, "beta")
        await client.budgets.raise_limits("tokens", key="acme", tokens=2000, reason="paid")
        for run in acme:
            await run.result(timeout=60)
        await show(client, "acme")
        print(f"at most {max(most.values())} at once for each customer")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
