"""Wait for an external callback: a payment provider answers by webhook, hours later.

python examples/external_callback.py
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from flowfabric import App, Context

app = App()
calls: list[tuple[str, str]] = []


class Receipt(BaseModel):
    reference: str
    amount: int


async def start_payment(order: str, token: str) -> str:
    """Simulate a provider that keeps our token and calls back later."""
    calls.append((order, token))
    return f"payment of {order}"


@app.task
async def pay(ctx: Context, order: str) -> str:
    callback = await ctx.waitpoint("callback")
    started = await ctx.step("start", start_payment, order, callback.token)
    receipt = await callback.wait(Receipt, timeout=timedelta(hours=1))
    return f"{started}: {receipt.amount} by {receipt.reference}"


async def webhook(token: str, body: dict[str, object], delivery: str) -> None:
    """Handle a request, as a web framework does. The delivery id of the provider makes a repeat
    harmless.
    """
    answer = await app.signal(token, body, by="provider", key=delivery)
    print("webhook: repeat" if answer.is_duplicate else "webhook: new")


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        run = await pay.submit("tea")
        while not calls:
            await asyncio.sleep(0.01)
        _, token = calls[0]
        body = {"reference": "p-1", "amount": 7}
        await webhook(token, body, "delivery-1")
        print(await run.result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
