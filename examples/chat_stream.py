"""Stream the answer of a language model to a terminal: tokens, progress and a summary.

The first attempt fails in the middle of the answer. A rewind then tells the reader to forget the
tokens of that attempt, so the reader shows the answer once.

python examples/chat_stream.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic import BaseModel

from flowfabric import App, Context, Fixed, Frame, Retry, Rewind, Run

app = App()


class Token(BaseModel):
    text: str
    logprob: float


async def model(prompt: str) -> AsyncIterator[Token]:
    """Simulate a language model."""
    for number, word in enumerate(f"{prompt}? Because Postgres is enough.".split()):
        await asyncio.sleep(0.01)
        yield Token(text=f"{word} ", logprob=-0.1 * number)


async def search(prompt: str) -> list[str]:
    return [f"page about {word}" for word in prompt.split()]


@app.task(streams=Token, retry=Retry(max_retries=2, backoff=Fixed()))
async def answer(ctx: Context, prompt: str) -> str:
    await ctx.stream.send("searching", kind="progress")
    pages = await ctx.step("search", search, prompt)
    await ctx.stream.summary({"prompt": prompt, "pages": len(pages), "tokens": 0})
    words: list[str] = []
    async for token in model(prompt):
        await ctx.stream.send(token, kind="delta")
        words.append(token.text)
        if ctx.attempt == 1 and len(words) == 3:
            raise ConnectionError("the model went away")
    await ctx.stream.summary({"tokens": len(words), "done": True})
    return "".join(words).strip()


async def show(run: Run[str, Token]) -> None:
    """Print the stream as a terminal would show it."""
    shown: list[Frame[Token]] = []
    async for item in run.stream():
        if isinstance(item, Rewind):
            kept = [one for one in shown if item.keeps(one)]
            print(f"-- attempt {item.attempt}: forget {len(shown) - len(kept)} frames")
            shown = kept
        elif isinstance(item, Frame):
            shown.append(item)
    print("progress:", *(one.text for one in shown if one.kind == "progress"))
    print("answer:  ", "".join(one.data.text for one in shown if one.kind == "delta"))


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        run = await answer.submit("Why durable execution")
        await show(run)
        print("summary: ", await run.summary())
        print("result:  ", await run.result())
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
