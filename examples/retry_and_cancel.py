"""Retry transient failures, stop at permanent failures, and cancel a run.

python examples/retry_and_cancel.py
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from flowfabric import (
    App,
    Context,
    ExecutionCancelled,
    ExecutionFailed,
    Exponential,
    Retry,
)

app = App()

QUICK = Exponential(initial=timedelta(milliseconds=20), maximum=timedelta(milliseconds=100))


@app.task(retry=Retry(max_retries=4, backoff=QUICK, never_on=(ValueError,)))
async def fetch(ctx: Context, url: str) -> str:
    if not url.startswith("https://"):
        raise ValueError(f"{url} is not a safe address")  # a retry does not help
    if ctx.attempt < 3:
        raise TimeoutError("no answer")  # a retry may help
    return f"{url} answered in attempt {ctx.attempt}"


@app.task
async def watch(ctx: Context) -> None:
    try:
        while True:
            await ctx.progress(10, "watching")
            await asyncio.sleep(0.05)
    finally:
        print("watch: told to stop, putting things away")


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())

        print(await (await fetch.submit("https://example.org")).result(timeout=60))
        try:
            await (await fetch.submit("ftp://example.org")).result(timeout=60)
        except ExecutionFailed as error:
            print(f"failed: {error}")

        run = await watch.submit()
        while (await run.progress()).percent is None:
            await asyncio.sleep(0.02)
        await run.cancel(reason="no longer needed")
        try:
            await run.result(timeout=60)
        except ExecutionCancelled as error:
            print(f"cancelled: {error}")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
