"""The tasks of the demo."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from flowfabric import App, Context, Fixed, Retry

app = App()


@app.task
async def greet(name: str) -> str:
    await asyncio.sleep(0.05)
    return f"Hello, {name}!"


@app.task
def resize(picture: str, width: int) -> str:
    """Do some work in a plain function, which runs in a thread."""
    return f"{picture}@{width}px"


@app.task(retry=Retry(max_retries=4, backoff=Fixed(timedelta(milliseconds=300))))
async def charge_card(ctx: Context, order: int) -> str:
    """Fail twice, then succeed."""
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} paid in attempt {ctx.attempt}"


@app.task
async def sleeper(ctx: Context, seconds: float) -> str:
    """Work for a while, so that the demo can kill the first worker."""
    await asyncio.sleep(seconds)
    return f"finished in attempt {ctx.attempt} with epoch {ctx.epoch}"
