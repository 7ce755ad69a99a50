"""`versions`: what is in flight by code version, and whether one may be switched off."""

from __future__ import annotations

from flowfabric.client import FlowFabric
from flowfabric.core.code_version import CodeVersion
from flowfabric.core.step import Step
from support.factories import NAMESPACE, TASK


async def test_versions_are_listed_with_the_answer(ff, make, db):
    await make.execution("waiting")
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
        await client.steps.record(held, Step(name="a", occurrence=0, position=0, code_version="1"))
        await client.workers.register(
            worker_id="w", worker_instance_id="w-2", tasks=[TASK], code=CodeVersion("2")
        )
    assert (await ff("show", str(held.id))).line["code_version"] == "1"
    assert "code version" in (await ff("show", str(held.id), "-o", "table")).out
    lines = (await ff("versions")).lines
    assert [(one["task"], one["code_version"], one["in_flight"]) for one in lines] == [
        (TASK, "1", 1),
        (TASK, "2", 0),
    ]
    assert [one["may_stop"] for one in lines] == [False, False]
    assert "has no worker" in lines[0]["answer"]
    table = (await ff("versions", TASK, "-o", "table")).out.splitlines()
    assert table[0].split() == ["TASK", "VERSION", "IN", "FLIGHT", "WORKERS", "READ", "BY"]
    assert table[1].split() == [TASK, "1", "1", "0", "-"]
    assert table[-1].startswith("Version 2 is in use")


async def test_a_version_does_not_control_the_terminal(ff, db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        await client.workers.register(
            worker_id="w", worker_instance_id="w", tasks=[TASK], code=CodeVersion("1\x9b2J\u202e")
        )
    table = (await ff("versions", "-o", "table")).out
    assert table.count("1?2J?") == 2
    assert table.replace("\n", "").isprintable()


async def test_no_versions_are_no_mistake(ff, db):
    found = await ff("versions", "other", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no code version is in flight or has a worker for the task other" in found.err
