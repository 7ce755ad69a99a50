"""Measures the HTTP server: `python benchmarks/server.py [--quick]`.

Submits one by one over 32 connections and in batches of 500, waits for results, and opens streams
of events, all from one client process against one server process and one Postgres. Rates depend on
the machine; processor time per operation (server and client process, without Postgres) depends on
it less. BENCH_DSN names a server to use instead of a temporary one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from time import perf_counter
from typing import Any

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import database, say, server

TASK = "bench.nothing"


class Caller:
    """One connection that is kept open: the smallest client, so that it costs little itself."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"

    async def open(self) -> Caller:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(
        self, method: str, path: str, body: bytes = b"", more: str = ""
    ) -> tuple[int, bytes]:
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\n{self._head}{more}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)


def processor(pid: int) -> float:
    """Return the processor time of a process, in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        parts = file.read().rpartition(") ")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


async def measured(name: str, number: int, pid: int, work: Any) -> None:
    own = resource.getrusage(resource.RUSAGE_SELF)
    before, began = processor(pid), perf_counter()
    await work
    seconds = perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF)
    client = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    line = {
        "figure": name,
        "number": number,
        "per_s": round(number / seconds),
        "server_cpu_us": round((processor(pid) - before) / number * 1e6),
        "client_cpu_us": round(client / number * 1e6),
    }
    print(json.dumps(line), flush=True)


async def run(url: str, quick: bool) -> None:
    async with open_connection(url) as connection:
        await migrate(connection)
    app = App(database_url=url, name="bench")

    @app.task(name=TASK)
    async def nothing(x: int) -> int:
        return x

    client = await app.client()
    await app._register_tasks(client)
    token = (await client.tokens.create("bench", ["admin"])).token
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowfabric", "serve", "--port", str(port),
        env={**os.environ, "FLOWFABRIC_DATABASE_URL": url, "FLOWFABRIC_LOG_LEVEL": "WARNING"},
    )  # fmt: skip
    try:
        callers = []
        for _ in range(200):
            with suppress(OSError):
                callers.append(await Caller(port, token).open())
                break
            await asyncio.sleep(0.1)
        callers += [await Caller(port, token).open() for _ in range(31)]
        single = json.dumps({"task": TASK, "arguments": {"x": 1}}).encode()
        await asyncio.gather(*(one.call("POST", "/v1/executions", single) for one in callers))
        number = 1600 if quick else 32_000

        async def singles(one: Caller) -> None:
            for _ in range(number // 32):
                status, answer = await one.call("POST", "/v1/executions", single)
                assert status == 201, answer

        await measured("single submits, 32 connections", number, process.pid,
                       asyncio.gather(*map(singles, callers)))  # fmt: skip
        items = [{"task": TASK, "arguments": {"x": n}} for n in range(500)]
        batch = json.dumps({"items": items}).encode()
        batches = 8 if quick else 160

        async def batched(one: Caller) -> None:
            for _ in range(batches // 4):
                status, answer = await one.call("POST", "/v1/executions/batch", batch)
                assert status == 200, answer

        await measured("executions in batches of 500, 4 connections", batches * 500, process.pid,
                       asyncio.gather(*map(batched, callers[:4])))  # fmt: skip
        # The server closes connections that were silent for some seconds.
        await waits(port, token, await Caller(port, token).open(), process.pid, 1000)
        # One token may have 200 streams open.
        tokens = [(await client.tokens.create("bench", ["admin"])).token for _ in range(3)]
        await streams(port, tokens, process.pid, 500)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        await app.close()


async def waits(port: int, token: str, caller: Caller, pid: int, number: int) -> None:
    """Wait for many results at once. A bulk cancel then ends all executions."""
    given = {"task": TASK, "arguments": {"x": 1}, "lane": "waits", "delay": "1h"}
    body = json.dumps(given).encode()
    made = [await caller.call("POST", "/v1/executions", body) for _ in range(number)]
    uuids = [json.loads(answer)["uuid"] for _, answer in made]
    callers = [await Caller(port, token).open() for _ in uuids]

    async def wait(one: Caller, uuid: str) -> None:
        path = f"/v1/executions/{uuid}/result"
        status, answer = await one.call("GET", path, more="Prefer: wait=30\r\n")
        assert (status, json.loads(answer)["public_state"]) == (200, "cancelled"), answer

    async def all_waits() -> None:
        waiting = [asyncio.create_task(wait(*pair)) for pair in zip(callers, uuids, strict=True)]
        await asyncio.sleep(1)
        bulk = json.dumps({"where": "lane=waits", "dry_run": False}).encode()
        status, answer = await caller.call("POST", "/v1/bulk/cancel", bulk)
        assert status == 200, answer
        await asyncio.gather(*waiting)

    await measured("results waited for at once", number, pid, all_waits())
    for one in callers:
        one.writer.close()


async def streams(port: int, tokens: list[str], pid: int, number: int) -> None:
    """Open many streams of events; each must see one submit."""
    readers = []
    for each in range(number):
        token = tokens[each % len(tokens)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        readers.append((reader, writer))
    heads = await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in readers))
    assert all(head.startswith(b"HTTP/1.1 200 ") for head in heads), heads
    await asyncio.sleep(1)
    body = json.dumps({"task": TASK, "arguments": {"x": 1}, "lane": "seen"}).encode()

    async def all_streams() -> None:
        await (await Caller(port, tokens[0]).open()).call("POST", "/v1/executions", body)
        await asyncio.gather(*(reader.readuntil(b'"seen"') for reader, _ in readers))

    await measured("streams that see one event", number, pid, all_streams())
    for _, writer in readers:
        writer.close()


async def everything(quick: bool) -> None:
    async with server() as admin, database(admin, "http") as url:
        await run(url, quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a tenth of the size.")
    quick = parser.parse_args().quick
    say(f"load average before: {os.getloadavg()[0]:.1f}")
    asyncio.run(everything(quick))


if __name__ == "__main__":
    main()
