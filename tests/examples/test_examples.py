"""The examples, run as a reader would run them, each on a database of its own."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from flowfabric import FlowFabric

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = Path(sys.executable).with_name("flowfabric")


def environment(db) -> dict[str, str]:
    return {**os.environ, "FLOWFABRIC_DATABASE_URL": db.url, "PYTHONUNBUFFERED": "1"}


async def run(db, script: str) -> list[str]:
    """The lines an example prints; its log, if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        cwd=EXAMPLES,
        env=environment(db),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, log = await asyncio.wait_for(process.communicate(), 200)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, log.decode()
    return out.decode().splitlines()


@asynccontextmanager
async def worker(db, app: str):
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "worker",
        app,
        cwd=EXAMPLES,
        env=environment(db),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 200)


@pytest.mark.slow(short=4, of="processes")
async def test_an_order_is_kept_after_a_failure_and_another_is_undone(db):
    lines = await run(db, "orders.py")
    assert lines[:2] == ["track-parcel-1", "refunded"]
    ledger = lines[2:]
    assert sorted(ledger) == sorted(
        [
            "charged 49.90 for order 1",
            "reserved a lamp for order 1",
            "the carrier was away",
            "shipped parcel-1",
            "charged 120.00 for order 2",
            "refunded payment-2",
        ]
    )


@pytest.mark.slow(short=4, of="processes")
async def test_customers_share_a_model_under_limits_and_budgets(db):
    lines = await run(db, "llm_limits.py")
    assert lines == [
        "acme: 500 of 500 tokens",
        "beta: 300 of 500 tokens",
        "acme: 800 of 2000 tokens",
        "at most 2 at once for each customer",
    ]


async def test_an_answer_is_streamed_and_a_crash_shows_as_a_rewind(db):
    lines = await run(db, "chat_stream.py")
    answer = "Why durable execution? Because Postgres is enough."
    assert lines == [
        "-- attempt 2: forget 4 frames",
        "progress: searching",
        f"answer:   {answer} ",
        "summary:  {'done': True, 'pages': 3, 'prompt': 'Why durable execution', 'tokens': 7}",
        f"result:   {answer}",
    ]


@pytest.mark.slow(short=4, of="processes")
async def test_executions_are_mirrored_into_another_table(db):
    assert await run(db, "mirror_executions.py") == [
        "4 changes mirrored",
        "0 changes mirrored after a restart",
        "shop.pack completed",
        "shop.pack failed",
    ]


async def test_providers_race_under_a_budget(db):
    assert await run(db, "race_under_budget.py") == [
        "luxury: too expensive for acme",
        "swift says: Is it raining? Yes.",
        "spent at most 1.00: True",
        "the second race waits for the budget",
        "swift says: Is it late? Yes.",
    ]


@pytest.mark.slow(short=2, of="examples")
async def test_failures_pass_or_stay_and_a_run_is_cancelled(db):
    lines = await run(db, "retry_and_cancel.py")
    assert lines[0] == "https://example.org answered in attempt 3"
    told = "\n".join(lines[1:])
    assert "in attempt 1: ValueError: ftp://example.org is not a safe address" in told
    assert "watch: told to stop, putting things away" in lines
    assert "no longer needed" in told.partition("cancelled: ")[2]


@pytest.mark.slow(short=2, of="examples")
async def test_a_schedule_fires_and_its_task_can_be_run_by_hand(db):
    lines = await run(db, "nightly_report.py")
    assert lines[:2] == ["beat", "beat"]
    assert [line.split(" next at ")[0].rpartition(".")[2] for line in lines[2:-1]] == [
        "beat",
        "nightly",
    ]
    assert lines[-1] == "41 orders, 1 refunds"


@pytest.mark.slow(short=2, of="examples")
async def test_a_film_is_made_of_chunks(db):
    lines = await run(db, "media_pipeline.py")
    assert lines[:2] == [
        "clouds: 3000 frames, 2 subtitles",
        "removed the parts of https://example.org/clouds",
    ]
    assert lines[2:-1] == [f"encode {n} in {2 if n == 2 else 1} attempts" for n in range(6)]
    assert lines[-1] == "11 nodes completed"
    async with FlowFabric(db.url) as client:
        (flow,) = (await client.flows.list()).flows
        assert (flow.flow_kind, flow.node_count, flow.state) == ("media", 11, "completed")


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("refund_by_link.py", ["tea: refunded at once", "car: refunded"]),
        pytest.param(
            "external_callback.py",
            ["webhook: new", "payment of tea: 7 by p-1"],
            marks=pytest.mark.slow(short=2, of="examples"),
        ),
        pytest.param(
            "deploy_approval.py",
            ["1.0 deployed: ops and legal agreed", "1.1 stopped by legal: seen"],
            marks=pytest.mark.slow(short=2, of="examples"),
        ),
    ],
)
async def test_an_answer_from_outside_continues_the_handler(db, script, lines):
    assert await run(db, script) == lines


@pytest.mark.slow(short=4, of="processes")
async def test_the_first_provider_counts_and_the_others_are_stopped(db):
    lines = await run(db, "provider_race.py")
    told = [line for line in lines if line.endswith("told to stop")]
    rest = [line for line in lines if line not in told]
    # On a busy machine the race may be over before the old one has failed.
    if "ask_the_old_one cancelled" in rest:
        rest[rest.index("ask_the_old_one cancelled")] = "ask_the_old_one failed"
    assert rest == [
        "swift completed",
        "north cancelled",
        "river cancelled",
        "ask_the_old_one failed",
        "book completed",
        "booked swift for 7.90",
        "north is the cheapest of 2",
        "an invoice",
    ]
    assert set(told) == {"north: told to stop", "river: told to stop"}


@pytest.mark.slow
async def test_django_submits_with_its_transaction(db):
    async with worker(db, "django_app:app"):
        lines = await run(db, "django_app.py")
    assert lines == [
        "invoice 1 sent",
        "order 2 is not paid: neither the order nor its invoice is there",
    ]
    assert await db.fetchval("select array_agg(number) from shop_order") == [1]
    async with FlowFabric(db.url) as client:
        assert len((await client.executions.list()).executions) == 1


@pytest.mark.slow
async def test_fastapi_submits_with_its_transaction(db, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", db.url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "fastapi_app", raising=False)
    import fastapi_app

    async with (
        fastapi_app.lifespan(fastapi_app.web),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(fastapi_app.web), base_url="http://shop"
        ) as browser,
        worker(db, "fastapi_app:app"),
    ):
        kept = await browser.post("/customers", json={"mail": "ada@example.org"})
        assert kept.status_code == 201
        refused = await browser.post("/customers", json={"mail": "nobody"})
        assert refused.status_code == 422
        id = kept.json()["run"]
        result = await fastapi_app.app.get(id).result(timeout=200)
        assert result == "welcomed customer 1 at ada@example.org"
        assert (await browser.get(f"/runs/{id}")).json() == {"state": "completed"}
        unknown = "{fp:0}:01a1e28e-cfe2-755a-a446-40821a99556f"
        assert (await browser.get(f"/runs/{unknown}")).status_code == 404
    assert await db.fetchval("select array_agg(mail) from customer") == ["ada@example.org"]
    async with FlowFabric(db.url) as client:
        assert len((await client.executions.list()).executions) == 1


@pytest.mark.slow
async def test_the_shop_has_250_lines_and_passes_its_own_tests(db):
    lines = sum(len(path.read_text().splitlines()) for path in (EXAMPLES / "shop").glob("*.py"))
    assert lines <= 250
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"),
        cwd=EXAMPLES / "shop",
        env={"PATH": os.environ["PATH"], "FLOWFABRIC_TEST_DATABASE_URL": db.url},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await asyncio.wait_for(process.communicate(), 200)
    assert re.search(r"^4 passed in ", told.decode(), re.MULTILINE), told.decode()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in path.read_text() or "cd examples" in path.read_text()
