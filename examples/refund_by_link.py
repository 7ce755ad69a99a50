"""Refund by approval link: the handler sends a link, and frees its slot until the answer comes.

python examples/refund_by_link.py
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from flowfabric import App, Context

app = App()
mails: list[str] = []


async def mail_link(token: str) -> None:
    """Simulate a mail. The token is a password for one answer, so do not log it."""
    mails.append(token)


@app.task
async def refund(ctx: Context, order: str, amount: int) -> str:
    if amount < 50:
        return f"{order}: refunded at once"
    approval = await ctx.waitpoint("approval")
    await ctx.step("mail", mail_link, approval.token)
    is_approved = await approval.wait(bool, timeout=timedelta(days=2), default=False)
    return f"{order}: {'refunded' if is_approved else 'not refunded'}"


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        print(await (await refund.submit("tea", 5)).result(timeout=60))
        run = await refund.submit("car", 5000)
        while not mails:
            await asyncio.sleep(0.01)
        # What the page behind the link does when somebody presses the button:
        await app.signal(mails[0], True, by="ada")
        print(await run.result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
