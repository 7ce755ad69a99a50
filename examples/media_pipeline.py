"""Encode a film in chunks: fan out, fan in, and pass typed results from node to node.

python examples/media_pipeline.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from flowfabric import App, Context, Fixed, Retry

app = App()


@dataclass(frozen=True)
class Source:
    title: str
    length: timedelta


@dataclass(frozen=True)
class Chunk:
    number: int
    frames: int
    attempts: int


@dataclass(frozen=True)
class Film:
    title: str
    frames: int
    subtitles: list[str]


@app.task
async def probe(url: str) -> Source:
    return Source(title=url.rpartition("/")[2], length=timedelta(minutes=2))


# One chunk fails in its first attempt. Only this chunk is retried; the results of the others stay.
@app.task(retry=Retry(max_retries=3, backoff=Fixed(timedelta(milliseconds=50))))
async def encode(ctx: Context, source: Source, number: int, of: int) -> Chunk:
    if number == 2 and ctx.attempt == 1:
        raise ConnectionError("the encoder went away")
    seconds = source.length.total_seconds() / of
    return Chunk(number, frames=int(25 * seconds), attempts=ctx.attempt)


@app.task
async def transcribe(source: Source) -> list[str]:
    return [f"{source.title}: hello", f"{source.title}: good-bye"]


@app.task
async def stitch(source: Source, chunks: list[Chunk], subtitles: list[str]) -> Film:
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    return Film(source.title, sum(chunk.frames for chunk in chunks), subtitles)


@app.task
async def announce(film: Film) -> str:
    return f"{film.title}: {film.frames} frames, {len(film.subtitles)} subtitles"


@app.task
async def clean_up(url: str) -> str:
    return f"removed the parts of {url}"


async def main() -> None:
    url, number = "https://example.org/clouds", 6
    async with app:
        await app.prepare()
        # Nothing runs inside the block. The end of the block stores the whole graph, or nothing.
        async with app.flow("media", tags={"media.source": url}) as f:
            source = f.add(probe, url)
            chunks = [
                f.add(encode, source.result, n, number, name=f"encode {n}") for n in range(number)
            ]
            text = f.add(transcribe, source.result)
            film = f.add(stitch, source.result, [chunk.result for chunk in chunks], text.result)
            told = f.add(announce, film.result)
            f.add(clean_up, url, after=film)

        worker = asyncio.create_task(app.run_worker())
        print(await f.run.result(told, timeout=60))
        results = await f.run.results(timeout=60)
        print(results["clean_up"])
        for chunk in chunks:
            encoded = await f.run.result(chunk)
            print(chunk.name, "in", encoded.attempts, "attempts")
        for state, count in (await f.run.summary()).counts.items():
            print(count, "nodes", state)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
