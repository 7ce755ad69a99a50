"""Workers over HTTP: claim, renew, settle, steps, waits; leases are signed and bound."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from flowfabric.client import executions
from flowfabric.server import routing
from server.stage import OURS, THEIRS
from worker.apps import working
from worker.waiting import eventually

WORKER = {"worker_id": "js", "worker_instance_id": "js-1"}
TASKS = [{"name": "upper", "arguments": {"type": "object", "required": ["text"]}}]

CLAIM = (
    "select execution_ids from ff.claim_executions(p_partition_key => 0::smallint, "
    "p_namespace => $1, p_worker_id => 'w', p_worker_instance_id => 'w-2', p_claim_id => $2, "
    "p_lanes => null, p_tasks => null, p_capabilities => '{}', p_limit => 1, "
    "p_lease_ttl => '30 s', p_gives_way => true)"
)


@pytest.fixture
async def work(world):
    caller = await world.caller("work", "submit")
    answer = await caller.post("/v1/workers/register", json={**WORKER, "tasks": TASKS})
    assert answer.json() == {"outcome": "registered"}
    return caller


async def submitted(caller, text="a", **more):
    body = {"task": "upper", "arguments": {"text": text}, **more}
    answer = await caller.post("/v1/executions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["uuid"]


async def claimed(caller, **more):
    body = {**WORKER, "tasks": ["upper"], **more}
    answer = await caller.post("/v1/workers/claim", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def post(caller, verb, lease, **body):
    return await caller.post(f"/v1/leases/{verb}", json={"lease": lease, **body})


async def test_an_execution_is_claimed_renewed_and_completed(work):
    uuid = await submitted(work, "hello")
    (held,) = await claimed(work)
    assert (held["uuid"], held["arguments"], held["attempt"]) == (uuid, {"text": "hello"}, 1)
    assert await claimed(work) == []
    renewed = await work.post("/v1/leases/renew", json={"leases": [held["lease"]]})
    assert renewed.json() == {"lost": [], "busy": []}
    assert (await post(work, "progress", held["lease"], percent=50)).status_code == 200
    done = await post(work, "complete", held["lease"], result="HELLO")
    assert done.json()["outcome"] == "completed"
    again = await post(work, "complete", held["lease"], result="HELLO")
    assert again.json() == done.json()
    assert (await work.get(f"/v1/executions/{uuid}/result")).json()["result"] == "HELLO"
    late = await post(work, "fail", held["lease"], reason="late")
    assert late.json()["type"] == "urn:flowfabric:execution_not_active"


async def test_a_repeated_claim_gets_the_same_leases(work):
    await submitted(work)
    key = str(uuid4())
    body = {**WORKER, "tasks": ["upper"]}
    first = await work.post("/v1/workers/claim", json=body, headers={"idempotency-key": key})
    again = await work.post("/v1/workers/claim", json={**body, "claim_id": key})
    assert [one["lease"] for one in again.json()["items"]] == [
        one["lease"] for one in first.json()["items"]
    ]
    wrong = await work.post("/v1/workers/claim", json=body, headers={"idempotency-key": "x"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "claim_id")


async def test_a_repeated_claim_that_waited_gets_the_same_leases(work):
    """It got nothing: the claim forgot its id when it began to wait."""
    key = str(uuid4())
    body = {**WORKER, "tasks": ["upper"], "claim_id": key}
    waiting = asyncio.create_task(work.post("/v1/workers/claim", json={**body, "wait_seconds": 30}))
    polls = work._served.state.backend.long_polls
    await eventually(lambda: polls.total() == 1)
    await submitted(work)
    first = (await waiting).json()["items"]
    assert len(first) == 1
    again = await work.post("/v1/workers/claim", json=body)
    assert [one["lease"] for one in again.json()["items"]] == [one["lease"] for one in first]


async def test_the_claim_id_of_another_caller_finds_nothing(world, work):
    """It found the leases of the other caller, and signed them for this one."""
    uuid = await submitted(work)
    key = str(uuid4())
    (held,) = await claimed(work, claim_id=key)
    client = await world.client()
    (attempt,) = await client.executions.attempts(await only(client))
    other = await world.caller("work")
    for known in (key, str(attempt.attempt_id)):
        assert await claimed(other, claim_id=known) == []
    assert (await post(work, "complete", held["lease"], result=1)).status_code == 200
    assert (await work.get(f"/v1/executions/{uuid}/result")).json()["result"] == 1


async def test_an_attempt_fails_delays_and_is_released(world, work, clock):
    client = await world.client()
    uuid = await submitted(work)
    (held,) = await claimed(work)
    failed = await post(work, "fail", held["lease"], reason="no", retry_after="1m")
    assert failed.json()["will_retry"] is True
    await clock.advance(timedelta(minutes=2))
    await client.executions.promote_delayed()
    (held,) = await claimed(work)
    assert held["attempt"] == 2
    assert (await post(work, "delay", held["lease"], delay=60)).json()["outcome"] == "delayed"
    await clock.advance(timedelta(minutes=2))
    await client.executions.promote_delayed()
    (held,) = await claimed(work)
    assert (await post(work, "release", held["lease"])).json()["outcome"] == "released"
    (held,) = await claimed(work)
    ended = await post(work, "fail", held["lease"], reason="never", kind="permanent")
    assert ended.json()["will_retry"] is False
    state = (await work.get(f"/v1/executions/{uuid}/state")).json()["public_state"]
    assert state == "failed"


async def test_a_lost_lease_is_fenced(world, work, clock):
    client = await world.client()
    await submitted(work)
    (first,) = await claimed(work, lease_seconds=10)
    await clock.advance(timedelta(seconds=11))
    await client.leases.expire()
    (second,) = await claimed(work)
    assert second["attempt"] == 2
    for verb, body in (("complete", {"result": 1}), ("fail", {"reason": "x"}), ("release", {})):
        answer = await post(work, verb, first["lease"], **body)
        assert answer.status_code == 409, (verb, answer.text)
    lost = (await work.post("/v1/leases/renew", json={"leases": [first["lease"]]})).json()["lost"]
    assert [one["lease"] for one in lost] == [first["lease"]]
    assert (await post(work, "complete", second["lease"], result=1)).status_code == 200


async def test_a_step_is_recorded_once_and_a_signal_wakes_the_execution(world, work):
    uuid = await submitted(work)
    (held,) = await claimed(work)
    step = {"name": "load", "position": 0}
    first = await post(work, "steps", held["lease"], **step, value=1)
    again = await post(work, "steps", held["lease"], **step, value=2)
    assert (first.json()["value"], again.json()["value"]) == (1, 1)
    asked = {"name": "approve", "position": 1, "timeout": "1h"}
    assert (await post(work, "wait", held["lease"], **asked)).json() == {"outcome": "suspended"}
    sender = await world.caller("signal")
    body = {"name": "approve", "value": {"by": "ann"}}
    await sender.post(f"/v1/executions/{uuid}/signal", json=body)
    (held,) = await claimed(work)
    assert (await post(work, "steps", held["lease"], **step, value=3)).json()["value"] == 1
    taken = (await post(work, "wait", held["lease"], **asked)).json()
    assert taken["outcome"] == "taken"
    assert "ann" in json.dumps(taken["value"])
    assert (await post(work, "complete", held["lease"])).status_code == 200


async def test_a_lease_of_another_caller_and_a_forged_one_are_the_same_nothing(world, work):
    await submitted(work)
    (held,) = await claimed(work)
    lease = held["lease"]
    others = [await world.caller("work"), await world.caller("work", namespace=THEIRS)]
    middle = lease[:40] + ("A" if lease[40] != "A" else "B") + lease[41:]
    forged = [lease[:-1], lease + "A", lease.replace("ffl_", "ffw_"), "ffl_", "x", middle]
    answers = [await post(other, "complete", lease, result=1) for other in others]
    answers += [await post(work, "complete", one, result=1) for one in forged]
    details = {answer.json()["detail"] for answer in answers}
    assert {answer.status_code for answer in answers} == {409}
    assert details == {"This lease was not given to this caller; claim again."}
    assert (await post(work, "complete", lease, result=1)).status_code == 200


async def test_a_heartbeat_says_whether_to_register_again(work):
    beat = await work.post("/v1/workers/heartbeat", json={"worker_instance_id": "js-1"})
    assert beat.json() == {"register": False, "drain": False}
    beat = await work.post("/v1/workers/heartbeat", json={"worker_instance_id": "js-2"})
    assert beat.json() == {"register": True, "drain": False}


async def test_a_worker_that_hangs_up_takes_nothing(world, work, serving):
    token = await world.token("work", "submit")
    async with httpx.AsyncClient(
        base_url=serving, headers={"authorization": f"Bearer {token}"}
    ) as gone:
        body = {**WORKER, "tasks": ["upper"], "wait_seconds": 30}
        with pytest.raises(httpx.ReadTimeout):
            await gone.post("/v1/workers/claim", json=body, timeout=httpx.Timeout(60, read=0.5))
    await eventually(lambda: not world.served.state.backend.long_polls)
    uuid = await submitted(work)
    (held,) = await claimed(work, worker_instance_id="js-2")
    assert held["uuid"] == uuid


async def test_one_caller_cannot_have_all_long_polls(world, work, monkeypatch):
    """Of four, one caller gets two and the next gets one. The answer to a third is 429."""
    monkeypatch.setattr(routing, "LONG_POLLS", 4)
    polls = world.served.state.backend.long_polls
    other = await world.caller("work", namespace=THEIRS)
    body = {**WORKER, "tasks": ["upper"], "wait_seconds": 30}
    waiting = []
    try:
        for caller, total in ((work, 1), (work, 2), (other, 3)):
            waiting.append(asyncio.create_task(caller.post("/v1/workers/claim", json=body)))
            await eventually(lambda total=total: polls.total() == total)
        for caller, number in ((work, 2), (other, 1)):
            refused = await caller.post("/v1/workers/claim", json=body)
            assert (refused.status_code, refused.json()["waiting"]) == (429, number)
            assert refused.json()["type"] == "urn:flowfabric:too_many_polls"
            assert refused.headers["retry-after"]
        assert await claimed(work) == [], "a claim that does not wait is answered"
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await eventually(lambda: not polls)


async def test_the_callers_of_one_namespace_cannot_have_all_long_polls(world, monkeypatch):
    """Of four, they get three, with any number of tokens. One is left for another namespace."""
    monkeypatch.setattr(routing, "LONG_POLLS", 4)
    polls = world.served.state.backend.long_polls
    body = {**WORKER, "tasks": ["upper"], "wait_seconds": 30}
    ours = [await world.caller("work") for _ in range(3)]
    theirs = await world.caller("work", namespace=THEIRS)
    waiting = []
    try:
        for total, caller in enumerate((ours[0], ours[0], ours[1]), 1):
            waiting.append(asyncio.create_task(caller.post("/v1/workers/claim", json=body)))
            await eventually(lambda total=total: polls.total() == total)
        refused = await ours[2].post("/v1/workers/claim", json=body)
        assert (refused.status_code, refused.json()["waiting"]) == (429, 0)
        waiting.append(asyncio.create_task(theirs.post("/v1/workers/claim", json=body)))
        await eventually(lambda: polls.total() == 4)
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await eventually(lambda: not polls)


async def test_a_claim_gives_way_to_another_claim(world, work, db, monkeypatch):
    """Many claims at once would otherwise lock each other out, and some would get 503."""
    monkeypatch.setattr(executions, "_GIVE_WAY_SECONDS", 3600.0)
    await submitted(work)
    await submitted(work)
    other = await db.connect()
    async with other.transaction():
        (first,) = await other.fetchval(CLAIM, OURS, uuid4())
        assert first
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await claimed(work)


async def test_a_schema_that_no_form_can_read_is_refused(work):
    for field in ("arguments", "result"):
        task = {"name": "upper", field: {"properties": {"a": {"enum": 5}}}}
        answer = await work.post("/v1/workers/register", json={**WORKER, "tasks": [task]})
        assert (answer.status_code, answer.json()["field"]) == (422, f"tasks.0.{field}")


EXAMPLES = Path(__file__).parents[2] / "examples" / "workers"
PROGRAMS = {"worker.mjs": "node", "worker.sh": "bash"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_example_workers_are_short(program):
    assert len((EXAMPLES / program).read_text().splitlines()) <= 60


async def registered(client):
    return any(one.task == "upper" for one in await client.tasks.list())


def example(program: str) -> str:
    """Return the interpreter of an example; skip the test if the machine has none."""
    interpreter = shutil.which(PROGRAMS[program])
    if interpreter is None:
        pytest.skip(f"{PROGRAMS[program]} is not installed")
    if program == "worker.sh" and (not shutil.which("curl") or not shutil.which("jq")):
        pytest.skip("curl or jq is not installed")
    return interpreter


async def environment(world, serving) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin:/usr/local/bin",
        "FLOWFABRIC_URL": serving,
        "FLOWFABRIC_TOKEN": await world.token("work"),
    }


@pytest.mark.parametrize("program", PROGRAMS)
async def test_an_example_worker_runs_executions_to_their_end(world, serving, program):
    interpreter = example(program)
    settings = await environment(world, serving)
    submit = await world.caller("submit")
    client = await world.client()
    command = [interpreter, str(EXAMPLES / program)]
    results = []
    for text in ("hello", "again"):  # the second process follows a killed one
        process = await asyncio.create_subprocess_exec(*command, env=settings)
        try:
            await eventually(lambda: registered(client))
            uuid = await submitted(submit, text)
            place = f"/v1/executions/{uuid}/result"
            results.append((await submit.get(place, headers={"prefer": "wait=30"})).json())
        finally:
            process.kill()
            await process.wait()
    assert [one["result"] for one in results] == ["HELLO", "AGAIN"]


# The handler of each example, and one that says when it runs and waits until it may go on.
BREAKPOINTS = {
    "worker.mjs": (
        "upper: async ({ text }) => text.toUpperCase(),",
        """upper: async ({ text }) => {
    const { existsSync, writeFileSync } = await import("node:fs");
    writeFileSync("held", "");
    while (!existsSync("go")) await new Promise((resolve) => setTimeout(resolve, 20));
    return text.toUpperCase() + " late";
  },""",
    ),
    "worker.sh": (
        "upper() { jq '.text | ascii_upcase'; }",
        "upper() { touch held; until [ -e go ]; do sleep 0.02; done; jq '.text + \" late\"'; "
        "touch done; }",
    ),
}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_python_worker_takes_over_from_an_example_worker_in_the_middle_of_its_execution(
    world, serving, make_app, clock, tmp_path, program, end
):
    """The first worker is killed, or stopped for so long that its lease expires. A stopped worker
    goes on later, and its result is refused."""
    command = example(program)
    old, new = BREAKPOINTS[program]
    text = (EXAMPLES / program).read_text()
    assert old in text
    place = tmp_path / program
    place.write_text(text.replace(old, new))
    submit = await world.caller("submit")
    client = await world.client()
    app = make_app(namespace=OURS)

    @app.task(name="upper")
    async def upper(text: str) -> str:
        return text.upper()

    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            command,
            str(place),
            env=await environment(world, serving),
            cwd=tmp_path,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
        try:
            await eventually(lambda: registered(client))
            uuid = await submitted(submit, "hello")
            await eventually((tmp_path / "held").exists)
            os.killpg(process.pid, end)
            await clock.advance(timedelta(minutes=2))
            await client.leases.expire()
            async with working(app):
                answer = await submit.get(
                    f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"}
                )
            assert answer.json()["result"] == "HELLO"
            if end == signal.SIGSTOP:
                (tmp_path / "go").touch()
                os.killpg(process.pid, signal.SIGCONT)
                await eventually(lambda: refusals(world) > 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    state = (await submit.get(f"/v1/executions/{uuid}/result")).json()
    assert state["result"] == "HELLO"
    events = [one.kind for one in await client.executions.events(await only(client))]
    assert events == ["submitted", "claimed", "lease_expired", "reclaimed", "completed"]


def refusals(world) -> float:
    """Return how many completions the server has refused because the lease was lost."""
    labels = {"method": "POST", "route": "/v1/leases/complete", "status": "409"}
    registry = world.served.state.backend.metrics.registry
    return registry.get_sample_value("flowfabric_http_requests_total", labels) or 0


async def only(client):
    """Return the id of the only execution."""
    (found,) = (await client.executions.list()).executions
    return found.id


async def test_no_refusal_shows_an_id_of_a_lease_or_an_attempt(work, world):
    """The sentence of a refusal did: `(…, attempt_id=…)`."""
    uuid = await submitted(work)
    (held,) = await claimed(work)
    await post(work, "complete", held["lease"], result=1)
    client = await world.client()
    (attempt,) = await client.executions.attempts(await only(client))
    refused = await post(work, "fail", held["lease"], reason="x")
    assert refused.status_code == 409
    shown = (await work.get(f"/v1/executions/{uuid}")).text + refused.text
    assert "attempt_id" not in shown
    assert str(attempt.attempt_id) not in shown


async def test_frames_are_appended_once_and_read_in_order(work):
    uuid = await submitted(work)
    (held,) = await claimed(work)
    lease = held["lease"]
    one = await post(work, "frames", lease, first_no=0, frames=[{"data": "a"}, {"data": {"n": 1}}])
    assert (one.status_code, one.json()["next_no"]) == (200, 2), one.text
    again = await post(work, "frames", lease, first_no=1, frames=[{"data": "x"}, {"data": "b"}])
    assert again.json()["next_no"] == 3
    gap = await post(work, "frames", lease, first_no=9, frames=[{"data": "late"}])
    assert (gap.status_code, gap.json()["type"]) == (409, "urn:flowfabric:stream_gap")
    large = await post(work, "frames", lease, first_no=3, frames=[{"data": "x" * 70_000}])
    assert large.status_code == 413
    await post(work, "complete", lease, result=1)
    late = await post(work, "frames", lease, first_no=3, frames=[{"data": "late"}])
    assert late.status_code == 409
    found = (await work.get(f"/v1/executions/{uuid}/stream")).json()
    assert [one["data"] for one in found["items"]] == ["a", {"n": 1}, "b"]
    assert found["is_ended"] is True
