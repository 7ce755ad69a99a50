"""Workers tell the registry that they are there, and nobody's work depends on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

from flowfabric.core.errors import InvalidInput, Unavailable
from flowfabric.core.worker import Asked
from flowfabric.worker.registration import Registration, Registrations, Takeover
from worker.apps import working
from worker.waiting import eventually

CALLER: Any = object()


async def test_a_worker_is_listed_while_it_runs_and_signed_off_after_it(app, db):
    @app.task(name="mail.send", lane="mail", needs={"smtp"})
    async def send() -> None: ...

    client = await app.client()
    async with working(app, lanes=["mail"], needs={"smtp"}, worker_id="host") as worker:
        await eventually(lambda: client.workers.list())
        (info,) = await client.workers.list()
        assert (info.worker_id, info.worker_instance_id) == ("host", worker.instance_id)
        assert (info.namespace, info.lanes, info.tasks) == ("default", ["mail"], ["mail.send"])
        assert (info.capabilities, info.is_alive) == (["smtp"], True)
        assert info.liveness_ttl == 2 * app.settings.lease_ttl

    async def is_gone() -> bool:
        return not await client.workers.list(with_dead=True)

    await eventually(is_gone)
    rows = await db.fetch("select kind::text, reason from ff.worker_event order by worker_event_id")
    assert [tuple(row) for row in rows] == [
        ("registered", None),
        ("marked_dead", "worker_shutdown"),
    ]


async def test_a_worker_that_is_asked_to_drain_finishes_what_it_runs_and_ends(
    app, db, quick_beats, caplog
):
    begun, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> str:
        begun.set()
        await finish.wait()
        return "finished"

    client = await app.client()
    worker = await app.worker(worker_id="host", concurrency=3)
    running = asyncio.create_task(worker.run())
    first = await hold.submit()
    await begun.wait()

    async def is_counted() -> bool:
        found = await client.workers.list()
        return [(one.slots, one.running) for one in found] == [(3, 1)]

    await eventually(is_counted)
    with caplog.at_level(logging.INFO):
        assert await client.workers.drain(worker.instance_id, "deploy", actor="ada") == "asked"

        async def is_told() -> bool:
            return "worker drains, as an operator asked" in caplog.text

        await eventually(is_told)
    assert not running.done()
    finish.set()
    await running
    assert await first.result(timeout=60) == "finished"

    async def is_signed_off() -> bool:
        # by the thread of the heartbeat, a moment after the worker has ended
        return await client.workers.drain(worker.instance_id, "deploy") == "not_registered"

    await eventually(is_signed_off)


async def test_closing_the_app_signs_its_workers_off(make_app, db):
    app = make_app()

    @app.task
    async def noop() -> None: ...

    workers = [await app.worker(worker_id=f"host-{n}") for n in range(3)]
    running = [asyncio.create_task(worker.run()) for worker in workers]

    async def are_listed() -> bool:
        return await db.fetchval("select count(*) from ff.worker") == 3

    await eventually(are_listed)
    await app.close()
    await asyncio.gather(*running)
    assert await db.fetchval("select count(*) from ff.worker") == 0


async def test_a_worker_that_was_swept_registers_again(app, db, quick_beats):
    @app.task
    async def noop() -> None: ...

    client = await app.client()
    async with working(app) as worker:
        await eventually(lambda: client.workers.list())
        await client.workers.mark_dead(worker.instance_id, "a mistake")
        await eventually(lambda: client.workers.list())


async def test_a_worker_works_without_the_registry(app, db, caplog):
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def is_told() -> bool:
        return "workers not registered, retrying" in caplog.text

    await db.execute("alter table ff.worker rename to elsewhere")
    try:
        with caplog.at_level(logging.WARNING):
            async with working(app):
                run = await double.submit(21)
                assert await run.result(timeout=60) == 42
                await eventually(is_told, within=60)  # by the thread of the heartbeat
    finally:
        await db.execute("alter table ff.elsewhere rename to worker")


# The pieces, with a registry that answers as it is told


class Answers:
    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.errors: list[Exception] = []
        self.missing: list[str] = []
        self.draining: list[str] = []
        self.routes: dict[str, list[int]] = {}

    def _said(self, *call: str) -> None:
        self.calls.append(call)
        if self.errors:
            raise self.errors.pop(0)

    async def register(self, *, worker_instance_id: str, **_: Any) -> str:
        self._said("register", worker_instance_id)
        return "registered"

    async def heartbeat(self, names: Any, **_: Any) -> Asked:
        self._said("beat", *sorted(names))
        missing, self.missing = self.missing, []
        return Asked(missing, self.draining)

    async def unserved(self, names: Any, **_: Any) -> dict[str, list[int]]:
        self._said("unserved", *sorted(names))
        return self.routes

    async def mark_dead(self, name: str, reason: str, **_: Any) -> bool:
        self._said("dead", name, reason)
        return True


def about(name: str) -> Registration:
    return Registration("host", name, None, ["task"], [])


async def test_all_workers_of_a_process_beat_in_one_call():
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    for n in range(5):
        registrations.add(about(f"w{n}"))
    await registrations.beat(CALLER)
    assert [call[0] for call in answers.calls] == ["register"] * 5
    answers.calls.clear()
    await registrations.beat(CALLER)
    names = ("w0", "w1", "w2", "w3", "w4")
    assert answers.calls == [("beat", *names), ("unserved", *names)]
    # and not again until it is due
    await registrations.beat(CALLER)
    assert len(answers.calls) == 2


async def test_those_that_were_swept_register_with_the_same_beat():
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    registrations.add(about("a"))
    registrations.add(about("b"))
    await registrations.beat(CALLER)
    answers.calls.clear()
    answers.missing = ["b"]
    await registrations.beat(CALLER)
    assert answers.calls == [("beat", "a", "b"), ("unserved", "a", "b"), ("register", "b")]


async def test_a_beat_tells_a_worker_what_to_take_over_and_wakes_it_for_more():
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    woken: list[list[int]] = []
    taker = Takeover(lambda: woken.append([*taker.routes]))
    registrations.add(replace(about("a"), takeover=taker))
    registrations.add(replace(about("finisher"), finish_only=True))
    await registrations.beat(CALLER)
    for routes in ([], [1], [1], [1, 2], [2], []):
        answers.routes = {"a": routes, "finisher": routes}
        registrations._due_at = 0.0
        await registrations.beat(CALLER)
        assert taker.routes == routes
    assert woken == [[1], [1, 2]]
    assert ("unserved", "a") in answers.calls


async def test_what_failed_is_tried_again_with_the_next_beat(caplog):
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    registrations.add(about("a"))
    answers.errors = [Unavailable("no database"), ZeroDivisionError("odd")]
    for _ in range(3):
        await registrations.beat(CALLER)
    assert answers.calls == [("register", "a")] * 3
    assert caplog.text.count("workers not registered, retrying") == 2
    registrations.remove("a")
    answers.errors = [Unavailable("no database")]
    for _ in range(3):
        await registrations.beat(CALLER)
    assert answers.calls[3:] == [("dead", "a", "worker_shutdown")] * 2


async def test_a_worker_that_cannot_be_registered_is_not_asked_for_again(caplog):
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    registrations.add(about("a"))
    answers.errors = [InvalidInput(field="worker_id", problem="odd")]
    await registrations.beat(CALLER)
    await registrations.beat(CALLER)
    assert answers.calls == [("register", "a")]


async def test_a_worker_that_left_before_it_was_registered_is_not_spoken_of():
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=30))
    registrations.add(about("a"))
    registrations.remove("a")
    await registrations.beat(CALLER)
    await registrations.end(CALLER)
    assert answers.calls == []


async def test_the_leases_do_not_wait_for_a_slow_registry():
    answers = Answers()
    registrations = Registrations(answers, timedelta(seconds=1))

    async def slowly(**_: Any) -> str:
        answers.calls.append(("register",))
        await asyncio.sleep(0.08)
        return "registered"

    answers.register = slowly  # type: ignore[method-assign]
    for n in range(5):
        registrations.add(about(f"w{n}"))
    assert await registrations.beat(CALLER) is True
    # two on an idle machine
    assert 1 <= len(answers.calls) <= 2
