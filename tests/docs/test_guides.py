"""The code in the README and the guides runs as it stands, page by page, and does what it says."""

from __future__ import annotations

import ast
import asyncio
import configparser
import io
import json
import os
import re
import sys
import tomllib
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial

import httpx
import pytest
import sentry_sdk
from sqlalchemy.exc import IntegrityError

from docs.conftest import for_sqlalchemy
from docs.pages import NOT_RUN, PAGES, ROOT, blocks, name_of, same
from flowfabric import Context, ExecutionFailed, FlowFabric, InvalidInput, PublicState
from flowfabric.cli.init import TEMPLATE
from flowfabric.config import Settings
from flowfabric.telemetry import JsonFormatter, TextFormatter
from flowfabric.testing import Harness
from steps.stage import until
from support.factories import new_id
from via.kinds import KINDS
from worker.apps import log_to, working

GUIDE = ROOT / "docs" / "guide"
# Blocks that no test runs, in all pages together.
MOST_NOT_RUN = 5
# Pages with a test below; the code of any other page is run and has to raise nothing.
TESTED = {
    "README.md",
    *(
        f"docs/guide/{name}.md"
        for name in (
            "dependencies",
            "flows",
            "hooks",
            "logging",
            "quickstart",
            "retries",
            "schedules",
            "signals",
            "steps",
            "streams",
            "subscriptions",
            "tasks",
            "testing",
            "long-lived-executions",
            "transactional-steps",
            "transactional-submit",
            "web-applications",
            "webhooks",
        )
    ),
}
WITH_CODE = [page for page in PAGES if any(blocks(page, "python"))]


@pytest.mark.parametrize(
    "page", [page for page in WITH_CODE if name_of(page) not in TESTED], ids=name_of
)
async def test_the_code_of_a_page_runs(program, page):
    await program.run(page)


def test_every_tested_page_is_there():
    assert {name_of(page) for page in WITH_CODE} >= TESTED


def test_few_blocks_are_not_run_and_each_says_why():
    languages = {"console", "ini", "python", "sql", "toml", ""}
    found = [block for page in PAGES for block in blocks(page)]
    assert {block.language for block in found} <= languages
    assert len([block for block in found if block.not_run]) <= MOST_NOT_RUN
    for page in PAGES:
        for part in page.read_text().split("<!-- not run")[1:]:
            head = "<!-- not run" + part.partition("```")[0]
            assert NOT_RUN.match(head), f"{name_of(page)}: a block follows the reason at once"


class Enough(Exception):
    """What ends a loop that would follow events for ever."""


async def test_the_readme(program, db, capsys):
    told: list[str] = []
    # What the code calls without showing it.
    await program.run_text(
        """
from dataclasses import dataclass
from flowfabric import first_of


@dataclass
class User:
    mail: str


async def load_user(user_id: int) -> User:
    return User("ada@example.org")


async def send_mail(to: str) -> str:
    return f"sent to {to}"


async def tell_somebody(id, detail):
    told.append(str(id))
    raise Enough
""",
        "preamble",
    )
    program.names.update({"told": told, "Enough": Enough})
    tour, flow, events = blocks(ROOT / "README.md", "python")
    await program.run_text(tour.text, "README.md", tour.line)
    app = program.names["app"]
    assert set(app.tasks) == {"guide.onboard"}
    assert await program.names["run"].result() == "sent to ada@example.org"

    @app.task
    async def ask(carrier: str) -> int:
        await asyncio.sleep(0 if carrier == "swift" else 60)
        return len(carrier)

    @app.task
    async def book(price: int) -> str:
        return f"booked for {price}"

    @app.task
    async def print_label(text: str) -> str:
        return f"label: {text}"

    @app.task
    async def tell_customer() -> None: ...

    @app.task
    async def fail() -> None:
        raise ValueError("on purpose")

    program.names.update((task.__name__, task) for task in (ask, book, print_label, tell_customer))
    capsys.readouterr()
    await program.run_text(flow.text, "README.md", flow.line)
    assert ast.literal_eval(capsys.readouterr().out) == {
        "ask": 5,
        "book": "booked for 5",
        "print_label": "label: booked for 5",
        "tell_customer": None,
    }
    program.names["cursor"] = await (await app.client()).events.open()
    run = await fail.submit()
    with pytest.raises(Enough):
        await program.run_text(events.text, "README.md", events.line)
    assert told == [str(run.id)]


async def test_the_quickstart_shows_the_app_that_init_writes(program, capsys):
    shown, called = blocks(GUIDE / "quickstart.md", "python")
    written = TEMPLATE.format(module="app", file="app.py")

    def task(text: str) -> str:
        (found,) = (
            one for one in ast.walk(ast.parse(text)) if getattr(one, "name", "") == "welcome"
        )
        if ast.get_docstring(found):
            del found.body[0]
        return ast.unparse(found)

    assert task(shown.text) == task(written)
    await program.run_text(written, "app.py")
    await program.run_text(called.text, "quickstart.md", called.line)
    assert capsys.readouterr().out == "Welcome, Ada! Your account is 1003.\n"


def test_the_settings_and_the_unit_can_be_read(tmp_path, monkeypatch):
    (settings,) = blocks(GUIDE / "quickstart.md", "toml")
    given = tomllib.loads(settings.text)
    (tmp_path / "flowfabric.toml").write_text(settings.text)
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path)
        read = Settings.from_environment()
    assert read.namespace == given["namespace"]
    assert {name for name in given if not hasattr(read, name)} == set()
    (unit,) = blocks(GUIDE / "deployment.md", "ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit.text)
    assert "flowfabric worker" in parser["Service"]["ExecStart"]


async def test_tasks(program, capsys):
    program.needs = ("smtp",)
    await program.run(GUIDE / "tasks.md")
    names = program.names
    assert "lines.0.price" in await names["refused"]()
    async with working(names["app"], needs=["smtp"]):
        assert await names["submit"]() == Decimal("19.90")
        run = await names["send_mail"].submit("a@x", "?")
        assert (await run.result(timeout=60)).startswith("a@x: ? (attempt ")
        assert await names["watch"](run.id) == "completed"
        assert await names["find"]("mail-7") != run.id
    assert "claimed" in capsys.readouterr().out
    assert await names["stop"](run.id) is False
    with pytest.raises(TypeError):
        names["send_mail"]("a@x", "?")


async def test_logging(program, monkeypatch, capsys):
    seen: dict[str, object] = {}
    monkeypatch.setattr(sentry_sdk, "init", seen.update)
    text, lines = io.StringIO(), io.StringIO()
    with log_to(TextFormatter(), text), log_to(JsonFormatter(), lines):
        await program.run(GUIDE / "logging.md")
    assert "ConnectionError the bank does not answer\nTraceback " in capsys.readouterr().out
    assert seen["include_local_variables"] is False
    page = GUIDE / "logging.md"
    shown, as_json = (block.text for block in blocks(page, ""))
    logged = text.getvalue().partition(" error   ")[2]
    logged = re.sub(rf'File "{name_of(page)}", line \d+', 'File "/srv/shop/app.py", line 0', logged)
    shown = re.sub(r"line \d+", "line 0", shown.partition(" error   ")[2])
    assert same(logged).startswith(same(shown))
    (line,) = [json.loads(one) for one in lines.getvalue().splitlines() if '"error"' in one]
    assert set(json.loads(as_json)) <= set(line)


async def test_retries(program):
    await program.run(GUIDE / "retries.md")
    names = program.names
    run = await names["charge"].submit(1)
    async with working(names["app"]):
        with pytest.raises(ExecutionFailed, match="in attempt 1: CardDeclined"):
            await run.result(timeout=60)
        assert await (await names["fetch"].submit("u")).result(timeout=60) == "u"
        assert await (await names["send_reminder"].submit(1)).result(timeout=60) == "receipt of 1"

        async def refuse(order_id: int) -> str:
            raise names["ProviderError"](order_id, {"Retry-After": "90"})

        names["ask_provider"] = refuse
        for task, status, state in [
            ("send_invoice", 429, "delayed"),
            ("send_receipt", 429, "delayed"),
            ("send_receipt", 503, "delayed"),
            ("send_receipt", 404, "failed"),
            ("send_reminder", 404, "failed"),
        ]:
            await until(await names[task].submit(status), state)


async def test_hooks(program):
    await program.run(GUIDE / "hooks.md")
    await program.run_text(
        "runs = [await buy.submit('tea', 5), await buy.submit('car', 5000)]\n"
        "import asyncio\n"
        "while len(told) < 3: await asyncio.sleep(0.01)",
        "hooks",
    )
    assert sorted(program.names["told"]) == [
        "alert: shop.buy failed: the card was declined",
        "receipt: tea for 5",
        "refund of car",
    ]


async def test_signals(program):
    await program.run(GUIDE / "signals.md")
    app, names = program.names["app"], program.names
    async with working(app):
        run = await names["refund"].submit("tea")
        await until(run, PublicState.SUSPENDED)
        await names["decide"](str(run.id))
        assert await run.result(timeout=60) == "tea: refunded"
        watched = await names["watch"].submit()
        await watched.signal("stop", "enough")
        assert await watched.result(timeout=60) == "enough"
        collected = await names["collect"].submit()
        for note in ("a", "b", "end"):
            await collected.signal("note", note)
        assert await collected.result(timeout=60) == ["a", "b"]


async def test_streams(program):
    await program.run(GUIDE / "streams.md")
    app, names = program.names["app"], program.names
    async with working(app):
        assert await names["show"]("why durable") == "You asked: why durable "
        run = await names["write"].submit("why")
        assert await run.result(timeout=60) == "You asked: why"
        assert [one.kind async for one in run.stream()] == ["text"] * 3 + ["progress"]
        cleaned = await names["clean"].submit(["a", "b"])
        assert await cleaned.result(timeout=60) == 2
        lines = [one.data["message"] async for one in cleaned.stream(kinds=["log"])]
        assert lines == ["cleaned a", "cleaned b"]
        watched = await names["watch"].submit()
        await watched.result(timeout=60)
        assert [one.data["x"] async for one in watched.stream()] == [0, 1, 2]


async def test_subscriptions(program, capsys):
    await program.run(GUIDE / "subscriptions.md")
    names = program.names
    await program.run_text(
        """
first = await bill_what_is_there()
runs = [await pay.submit(f"A-{n}") for n in range(12)]
for run in runs:
    await run.result(timeout=60)
later = await bill_what_is_there()
again = await bill_what_is_there()
""",
        "subscriptions",
    )
    assert (names["first"], names["later"], names["again"]) == (0, 12, 0)
    assert capsys.readouterr().out.count("completed shop.pay") == 12


async def test_webhooks(program, db):
    """The function of the page accepts a signature of the database, and nothing else."""
    await program.run(GUIDE / "webhooks.md")
    is_genuine = program.names["is_genuine"]
    async with FlowFabric(db.url) as client:
        secret = await client.webhooks.add("crm", "https://hooks.example.com/")
        (signed,) = await client.webhooks.sign("crm", ["x.1"], [b"{}"])
    headers = {
        "webhook-id": "x.1",
        "webhook-timestamp": str(int(signed.signed_at.timestamp())),
        "webhook-signature": signed.signature,
    }
    assert is_genuine(secret, headers, b"{}")
    assert not is_genuine(secret, headers, b"{ }")
    assert not is_genuine(secret, headers | {"webhook-id": "x.2"}, b"{}")
    assert not is_genuine(secret, headers | {"webhook-timestamp": "7"}, b"{}")


async def test_steps(program):
    await program.run(GUIDE / "steps.md")
    await program.run_text(
        "results = [await (await task.submit(argument)).result(timeout=60)"
        " for task, argument in ((onboard, 7), (offer, ['cup', 'lamp']), (buy, 3))]",
        "steps",
    )
    assert program.names["results"] == ["label of letter to user 7", 7, "refunded"]


async def test_flows(program, db):
    await program.run(GUIDE / "flows.md")
    names = program.names
    app = names["app"]
    urls = ["a/b", "c"]
    async with working(app):
        assert await names["report"](urls) == "4 words"
        assert await names["two_offers"]() == 500
        assert await names["first_offer"]() == 500
        assert await (await names["weekly"].submit(urls)).result(timeout=60) == "4 words"
        assert await (await names["crawl"].submit(urls)).result(timeout=60) == 300
    async with app.flow("left") as f:
        f.add(names["fetch"], "x")
    assert await names["cancel"](str(f.run.id)) == "cancelled"
    assert await f.run.state() == "cancelled"
    kinds = "report", "offers", "race", "report of the week", "left"
    assert set(await db.fetchval("select array_agg(flow_kind) from ff.flow")) == set(kinds)


async def test_schedules(program):
    await program.run(GUIDE / "schedules.md")
    app = program.names["app"]
    assert set(app.schedules) == {
        "guide.morning_report",
        "guide.pull_prices",
        "guide.close_the_books",
    }
    async with working(app):
        assert await (await program.names["close_the_books"].submit()).result(timeout=60) is None


async def test_dependencies(program, db, capsys):
    await db.execute(
        "create table orders (id bigint primary key, price numeric, billed boolean);"
        "insert into orders values (7, 19.90, false)"
    )
    await program.run(GUIDE / "dependencies.md")
    names = program.names
    async with working(names["app"]):
        assert await names["run"].result(timeout=60) == Decimal("19.90")
    assert await db.fetchval("select billed from orders") is True
    assert set(names["seconds"]) == {"guide.bill"}
    # The hooks are registered by the last block, after the worker of the block before has ended.
    assert capsys.readouterr().out == "load the models\nsend the metrics\n"


async def test_web_applications(program, ff: Harness):
    await program.run(GUIDE / "web-applications.md")
    names = program.names
    web, app = names["web"], names["app"]
    async with (
        names["lifespan"](web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as browser,
    ):
        told = (await browser.post("/customers", json={"mail": "ada@example.org"})).json()
        assert await app.get(told["run"]).state() == "waiting"
        with pytest.raises(IntegrityError):
            await browser.post("/customers", json={"mail": "ada@example.org"})
        assert len(ff.submitted()) == 1

        async def order(key: str, **body: object) -> httpx.Response:
            return await browser.post("/orders", json=body, headers={"Idempotency-Key": key})

        first, again, other = [await order("k", id=n) for n in (7, 7, 8)]
        assert (first.status_code, again.json(), other.status_code) == (202, first.json(), 409)
        assert other.json()["run"] == first.json()["run"]
        bills = [
            (await browser.put(f"/bills/7?language={language}")).json() for language in ("en", "de")
        ]
        assert [bill["is_new"] for bill in bills] == [True, False]
        found = (await browser.get("/bills/7")).json()
        assert found == {"run": bills[0]["run"], "state": "waiting"}
        assert bills[1]["run"] == bills[0]["run"]
        assert (await browser.get("/bills/8")).status_code == 404
        assert (await browser.get("/runs/seven")).status_code == 422
        assert (await browser.post("/quick-bills/8?wait=0")).status_code == 202
    async with asynccontextmanager(names["browser"].__wrapped__)(ff) as browser:
        await names["test_a_bill_is_made_once"](ff, browser)
    async with (
        names["lifespan_with_worker"](web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as browser,
    ):
        done = await browser.post("/quick-bills/8?wait=20")
        assert (done.status_code, done.json()) == (200, {"bill": "bill 8 in en"})
        assert await app.get(told["run"]).result(timeout=60) == "welcomed customer 1"
        answer = await browser.get(f"/runs/{told['run']}")
        assert answer.json() == {"state": "completed"}
    assert app.loops == []


@pytest.mark.slow
async def test_testing(db, tmp_path):
    """The files of the page, as they stand, in a folder with nothing else."""
    for block in blocks(GUIDE / "testing.md"):
        if block.text.startswith("# "):
            name, _, _ = block.text.removeprefix("# ").partition("\n")
            (tmp_path / name).write_text(block.text)
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {
        *("pyproject.toml", "app.py", "test_onboard.py", "test_checkout.py", "test_mails.py")
    }
    pytest_run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-W", "error"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "FLOWFABRIC_TEST_DATABASE_URL": db.url},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await asyncio.wait_for(pytest_run.communicate(), 60)
    assert re.search(r"^3 passed in ", told.decode(), re.MULTILINE), told.decode()


def test_every_picture_of_the_guide_is_there():
    text = (GUIDE / "flows.md").read_text(encoding="utf-8")
    pictures = [part.partition(")")[0] for part in text.split("](pictures/")[1:]]
    assert len(pictures) >= 5
    assert [name for name in pictures if not (GUIDE / "pictures" / name).exists()] == []


async def test_transactional_steps(program, db):
    await db.execute("create table account (name text primary key, cents integer)")
    await db.execute("insert into account values ('ann', 500), ('bob', 0)")
    await db.execute("create table orders (id integer generated always as identity, article text)")
    await program.run(GUIDE / "transactional-steps.md")
    names = program.names
    async with working(names["app"]):
        run = await names["transfer"].submit("ann", "bob", 200)
        assert await run.result(timeout=60) == 200
        for refused in [("ann", "bob", 301), ("ann", "nobody", 1), ("nobody", "bob", 1)]:
            with pytest.raises(ExecutionFailed, match="ValueError"):
                await (await names["transfer"].submit(*refused)).result(timeout=60)
    assert await db.fetchval("select sum(cents) from account") == 500
    shop = names["Shop"](for_sqlalchemy(db.url)).app()

    @shop.task(name="order")
    async def order(ctx: Context, article: str) -> int:
        return await ctx.transaction(names["place_order"], article)

    async with working(shop):
        assert await (await order.submit("book")).result(timeout=60) == 1
    await shop._extensions.connect.kw["bind"].dispose()
    await shop.close()


async def test_long_lived_executions(program, db, clock):
    await program.run(GUIDE / "long-lived-executions.md")
    names = program.names
    async with working(names["app"]):
        run = await names["subscription"].submit("ann", month=11)
        client = await names["app"].client()
        async with asyncio.timeout(60):
            while not (await run.state()).is_terminal:
                if await run.state() == PublicState.DELAYED:
                    await clock.advance(days=30)
                    await client.executions.promote_delayed()
                await asyncio.sleep(0.01)
        assert await run.result() == "ann has paid 12 months"
    assert await db.fetchval("select count(*) from ff.event where kind = 'continued'") == 1


CASES = {
    "with_asyncpg": "asyncpg_connection",
    "with_psycopg": "psycopg_connection",
    "with_async_psycopg": "psycopg_async_connection",
    "with_session": "sqlalchemy_session",
    "with_async_session": "sqlalchemy_async_session",
    "with_django": "django_connection",
}


async def test_transactional_submit(program, db):
    await db.execute("create table orders (id bigint primary key)")
    # Django is configured before a program imports its connection.
    async with KINDS["django_connection"](db.url):
        await program.run(GUIDE / "transactional-submit.md")
    names = program.names
    assert {name for name in names if name.startswith("with_")} == set(CASES)
    runs = []
    for number, (function, kind) in enumerate(CASES.items()):
        async with KINDS[kind](db.url) as caller:
            given = (number,) if kind == "django_connection" else (caller.via, number)
            work = partial(names[function], *given)
            runs.append(await caller.run(lambda _, work=work: work()))
    async with working(names["app"]):
        results = await asyncio.gather(*(run.result(timeout=60) for run in runs))
    assert results == [f"order {number} is confirmed" for number in range(len(CASES))]
    assert await db.fetchval("select count(*) from orders") == len(CASES)
    with pytest.raises(InvalidInput, match="via"):
        await names["confirm"].submit(1, via=3)
    (call,) = blocks(GUIDE / "transactional-submit.md", "sql")
    sql, _, comments = call.text.partition("\n")
    shown = [json.loads(line.removeprefix("-- ")) for line in comments.splitlines()]
    id = str(new_id())
    shown[0][0] |= {
        "execution_id": id,
        "route_id": await db.fetchval("select max(route_id) from ff.execution"),
    }
    answer = json.loads(await db.fetchval(sql, json.dumps(shown[0])))
    assert answer["items"] == [shown[1]["items"][0] | {"execution_id": id}]
    assert set(answer) == set(shown[1])
