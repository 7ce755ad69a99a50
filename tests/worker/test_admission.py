"""Limits and budgets of tasks with real workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    App,
    Budget,
    BudgetExceeded,
    Context,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    Limit,
    LimitReached,
    PublicState,
    Retry,
    Run,
)
from flowfabric.core.errors import QuotaNotFound, TaskNotFound
from flowfabric.handlers.durable_run import DurableRun
from steps.stage import skip
from support.admission import in_one_partition
from support.clock import Clock
from worker.apps import AppMaker, working

SOON = timedelta(milliseconds=20)


class Stage:
    """Handlers that run until they are let go, counted by key."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.go = asyncio.Event()

    async def play(self, key: str) -> None:
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            await self.go.wait()
        finally:
            self.running[key] -= 1
            self.ended[key] += 1


async def becomes(found: Callable[[], Any], wanted: Any, *, within: float = 60.0) -> None:
    """Wait until a function returns a value, or a coroutine of it does."""
    seen = None
    try:
        async with asyncio.timeout(within):
            while True:
                value = found()
                seen = await value if asyncio.iscoroutine(value) else value
                if seen == wanted:
                    return
                await asyncio.sleep(SOON.total_seconds())
    except TimeoutError:
        raise AssertionError(f"is {seen!r}, not {wanted!r}") from None


async def in_line(app: App, quota: str, key: str) -> int:
    gates = await (await app.client()).quotas.gates(quota, key=key)
    return gates[0].in_line


@in_one_partition
async def test_two_of_a_tenant_run_at_once_on_two_workers(make_app: AppMaker) -> None:
    stage = Stage()
    apps = [make_app(), make_app()]
    tasks = []
    for app in apps:

        @app.task(name="ask", limit=Limit("tenant", concurrency=2, key="tenant"))
        async def ask(tenant: str) -> None:
            await stage.play(tenant)

        tasks.append(ask)
    async with working(apps[0], concurrency=10), working(apps[1], concurrency=10):
        calls = [("acme",)] * 7 + [("beta",)] * 3
        runs = await tasks[0].submit_many(calls)
        await becomes(lambda: dict(stage.running), {"acme": 2, "beta": 2})
        await becomes(lambda: in_line(apps[0], "tenant", "acme"), 5)
        assert await in_line(apps[0], "tenant", "beta") == 1
        stage.go.set()
        for run in runs:
            await run.result(timeout=60)
    assert stage.most == {"acme": 2, "beta": 2}
    assert stage.ended == {"acme": 7, "beta": 3}


async def test_a_saturated_tenant_delays_nobody(app: App) -> None:
    stage = Stage()

    @app.task(name="ask", limit=Limit("tenant", concurrency=1, key="tenant"))
    async def ask(tenant: str) -> str:
        if tenant == "acme":
            await stage.play(tenant)
        return tenant

    async with working(app, concurrency=5):
        runs = await ask.submit_many([("acme",)] * 300)
        await becomes(lambda: stage.running["acme"], 1)
        other = await ask.submit("beta")
        assert await other.result(timeout=60) == "beta"
        assert stage.running["acme"] == 1
        stage.go.set()
        for run in runs[:30]:
            await run.result(timeout=120)
    assert stage.most["acme"] == 1


@in_one_partition
async def test_an_operator_changes_a_limit_at_run_time_and_lifts_the_change(app: App) -> None:
    stage = Stage()

    @app.task(name="ask", limit=Limit("tenant", concurrency=1, key="tenant"))
    async def ask(tenant: str) -> None:
        await stage.play(tenant)

    async with working(app, concurrency=10):
        runs = await ask.submit_many([("acme",)] * 4 + [("beta",)] * 4)
        await becomes(lambda: dict(stage.running), {"acme": 1, "beta": 1})
        quotas = (await app.client()).quotas
        changed = await quotas.set("tenant", key="acme", concurrency=3, reason="paid", actor="jo")
        assert (changed.outcome, changed.concurrency) == ("changed", 3)
        await becomes(lambda: dict(stage.running), {"acme": 3, "beta": 1})
        # What code declares does not undo it.
        other = App(database_url=app.settings.database_url)
        try:
            other.task(name="ask", limit=Limit("tenant", concurrency=2, key="tenant"))(ask.function)
            runs.append(await other.tasks["ask"].submit("beta"))
        finally:
            await other.close()
        await becomes(lambda: dict(stage.running), {"acme": 3, "beta": 2})
        assert (await quotas.gates("tenant", key="acme"))[0].concurrency == 3
        lifted = await quotas.lift("tenant", key="acme")
        assert (lifted.outcome, lifted.concurrency) == ("lifted", 2)
        stage.go.set()
        for run in runs:
            await run.result(timeout=60)


@in_one_partition
async def test_refuse_answers_the_submitter_and_stores_nothing(app: App, db: Any) -> None:
    stage = Stage()

    @app.task(name="ask", limit=Limit("api", concurrency=1, overflow="refuse"))
    async def ask() -> None:
        await stage.play("api")

    async with working(app, concurrency=10):
        run = await ask.submit()
        await becomes(lambda: stage.running["api"], 1)
        with pytest.raises(LimitReached) as caught:
            await ask.submit()
        assert caught.value.facts["quota"] == "api"
        assert await db.fetchval("select count(*) from ff.execution") == 1
        stage.go.set()
        await run.result(timeout=60)
        again = await ask.submit()
        await again.result(timeout=60)


async def state(run: Run[Any]) -> PublicState:
    return await run.state()


async def breaches(app: App, budget: str) -> int:
    return (await (await app.client()).budgets.get(budget)).breach_count


async def used(app: App, budget: str, key: str = "") -> dict[str, int]:
    return dict((await (await app.client()).budgets.get(budget, key=key)).usage)


async def test_a_budget_stops_an_execution_and_a_raise_lets_it_go_on(app: App) -> None:
    starts: list[str] = []

    @app.task(
        name="ask",
        budget=Budget("monthly", key="tenant", tokens=100, usd="1.00", on_exceed="suspend"),
    )
    async def ask(ctx: Context, tenant: str) -> str:
        starts.append(tenant)
        await ctx.usage(tokens=80, usd="0.50")
        await ctx.usage(tokens=80)
        return "done"

    async with working(app, concurrency=5):
        run = await ask.submit("acme")
        await becomes(lambda: state(run), PublicState.RATE_LIMITED)
        assert starts == ["acme"]
        assert await used(app, "monthly", "acme") == {"tokens": 80, "usd": 500_000}
        other = await ask.submit("beta")
        await becomes(lambda: state(other), PublicState.RATE_LIMITED)
        budgets = (await app.client()).budgets
        await budgets.raise_limits("monthly", key="acme", tokens=1000, actor="jo")
        assert await run.result(timeout=60) == "done"
        # The handler began again, but its first report counts once.
        assert starts == ["acme", "beta", "acme"]
        assert await used(app, "monthly", "acme") == {"tokens": 160, "usd": 500_000}
        assert await state(other) is PublicState.RATE_LIMITED
        await budgets.reset("monthly", key="beta")
        assert await other.result(timeout=60) == "done"
        assert await used(app, "monthly", "beta") == {"tokens": 80, "usd": 0}


async def test_a_budget_that_fails_raises_in_the_handler_and_counts_nothing(app: App) -> None:
    @app.task(name="ask", budget=Budget("daily", tokens=100))
    async def ask(ctx: Context, tokens: int) -> str:
        await ctx.usage(tokens=tokens)
        return "done"

    @app.task(name="careful", budget=Budget("daily"))
    async def careful(ctx: Context) -> str:
        try:
            await ctx.usage(tokens=60)
        except BudgetExceeded as error:
            # A shorter sleep may be over before it begins on a busy machine, and would not pause.
            await ctx.sleep(timedelta(seconds=2))
            return str(error)
        return "all of it"

    async with working(app, concurrency=5):
        assert await (await ask.submit(60)).result(timeout=60) == "done"
        with pytest.raises(ExecutionFailed) as caught:
            await (await ask.submit(70)).result(timeout=60)
        assert caught.value.type.endswith("BudgetExceeded")
        assert await used(app, "daily") == {"tokens": 60}
        # What was refused has used up the budget: nothing starts until there is room.
        run = await careful.submit()
        await becomes(run.state, PublicState.RATE_LIMITED)
        budgets = (await app.client()).budgets
        await budgets.raise_limits("daily", tokens=110)
        await becomes(lambda: breaches(app, "daily"), 2)
        await becomes(run.state, PublicState.RATE_LIMITED)
        await budgets.raise_limits("daily", tokens=1000)
        # A later run of the handler takes the same path: the failure is recorded.
        assert await run.result(timeout=60) == (
            "The budget daily has no room: tokens is at 60 of 110, and 60 more were reported. "
            "Nothing was counted."
        )
        assert await used(app, "daily") == {"tokens": 60}


async def test_usage_is_counted_once_however_often_the_handler_begins_again(app: App) -> None:
    @app.task(name="ask", budget=Budget("daily", tokens=1000, amounts={"pages": 50}))
    async def ask(ctx: Context) -> int:
        async def read() -> int:
            await ctx.usage(pages=3)
            return 3

        await ctx.usage(tokens=10)
        await ctx.sleep(SOON)
        pages = await ctx.step("read", read)
        await ctx.sleep(SOON)
        await ctx.usage(tokens=5)
        return pages

    @app.task(name="plain", budget=Budget("daily"))
    def plain(ctx: Context) -> None:
        def read() -> None:
            ctx.usage_sync(pages=4)

        ctx.usage_sync(tokens=100)
        ctx.sleep_sync(SOON)
        ctx.step_sync("read", read)
        ctx.sleep_sync(SOON)
        ctx.usage_sync(tokens=50)

    async with working(app):
        assert await (await ask.submit()).result(timeout=60) == 3
        assert await used(app, "daily") == {"tokens": 15, "pages": 3}
        await (await plain.submit()).result(timeout=60)
        assert await used(app, "daily") == {"tokens": 165, "pages": 7}


async def test_a_report_whose_record_was_lost_is_counted_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = DurableRun.record
    lost: list[str] = []

    async def record(self: DurableRun, entry: Any, **facts: Any) -> Any:
        if entry.name == "ff.usage" and not lost:
            lost.append(entry.name)
            raise ConnectionError("lost")
        return await recorded(self, entry, **facts)

    monkeypatch.setattr(DurableRun, "record", record)

    @app.task(name="ask", budget=Budget("daily", tokens=1000), retry=Retry(1, Fixed(timedelta(0))))
    async def ask(ctx: Context) -> int:
        async def read() -> int:
            await ctx.usage(tokens=1)
            return 7

        pages = await ctx.step("read", read)
        await ctx.usage(tokens=10)
        return pages

    async with working(app):
        assert await (await ask.submit()).result(timeout=60) == 7
    assert lost
    assert await used(app, "daily") == {"tokens": 11}


@pytest.mark.parametrize("kind", ["tasks", "threads"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_branches_in_another_order_report_the_same_sum(
    app: App, kind: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first run one branch is late. In the second one it reports first."""
    recorded = DurableRun.record
    attempts: list[int] = []

    async def record(self: DurableRun, entry: Any, **facts: Any) -> Any:
        if is_lost and len(attempts) == 1:
            raise ConnectionError("lost")
        return await recorded(self, entry, **facts)

    monkeypatch.setattr(DurableRun, "record", record)
    policy = Retry(1, Fixed(timedelta(0)))

    @app.task(name="tasks", budget=Budget("daily", tokens=1000), retry=policy)
    async def tasks(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        is_late = len(attempts) == 1

        async def report(tokens: int, name: str | None = None) -> None:
            if is_late and tokens == 5:
                await asyncio.sleep(3600)
            await ctx.usage(tokens=tokens, name=name)

        async with asyncio.TaskGroup() as group:
            group.create_task(report(5))
            group.create_task(report(7, "measured"))
            await group.create_task(report(7))
            await group.create_task(report(7))
            if is_late:
                raise ConnectionError("crashed")

    @app.task(name="threads", budget=Budget("daily"), retry=policy)
    def threads(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        with ThreadPoolExecutor(2) as pool:
            if len(attempts) == 2:
                pool.submit(ctx.usage_sync, tokens=5).result()
            for _ in range(2):
                pool.submit(ctx.usage_sync, tokens=7).result()
            pool.submit(ctx.usage_sync, tokens=7, name="measured").result()
        if len(attempts) == 1:
            raise ConnectionError("crashed")

    async with working(app):
        run = await (tasks if kind == "tasks" else threads).submit()
        await run.result(timeout=60)
    assert len(attempts) == 2
    assert await used(app, "daily") == {"tokens": 26}


@pytest.mark.parametrize(
    ("names", "total"), [(("first", "second"), 70), ((None, None), 770), (("x" * 250, "y"), 70)]
)
async def test_a_named_report_of_a_branch_is_counted_once_though_its_amount_differs(
    app: App, clock: Clock, names: tuple[str | None, ...], total: int
) -> None:
    """Without a name, other amounts are another report."""
    amounts = iter([(30, 40), (300, 400)])

    @app.task(name="ask", budget=Budget("daily", tokens=1000))
    async def ask(ctx: Context) -> None:
        pairs = zip(names, next(amounts), strict=True)
        await asyncio.gather(*(ctx.usage(tokens=amount, name=name) for name, amount in pairs))
        await ctx.sleep(timedelta(hours=1))  # the handler begins again, however slow the machine is

    async with working(app):
        run = await ask.submit()
        await becomes(lambda: state(run), PublicState.DELAYED)
        await skip(app, clock, timedelta(hours=1))
        await run.result(timeout=60)
    assert await used(app, "daily") == {"tokens": total}


async def test_usage_inside_a_step_can_suspend_the_execution(app: App) -> None:
    calls: list[str] = []

    @app.task(name="ask", budget=Budget("daily", tokens=10, on_exceed="suspend"))
    async def ask(ctx: Context) -> str:
        async def stream() -> str:
            calls.append("stream")
            for _ in range(4):
                await ctx.usage(tokens=5)
            return "text"

        return await ctx.step("stream", stream)

    async with working(app):
        run = await ask.submit()
        await becomes(lambda: state(run), PublicState.RATE_LIMITED)
        assert calls == ["stream"]
        await (await app.client()).budgets.raise_limits("daily", tokens=100)
        assert await run.result(timeout=60) == "text"
    # The second call of the function used tokens of its own.
    assert await used(app, "daily") == {"tokens": 30}


async def test_money_as_a_float_is_refused_and_counts_nothing(app: App) -> None:
    @app.task(name="ask", budget=Budget("daily", usd="1"))
    async def ask(ctx: Context) -> str:
        with pytest.raises(InvalidInput, match="not a float"):
            await ctx.usage(usd=0.02)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="a whole number"):
            await ctx.usage(tokens="7")  # type: ignore[arg-type]
        return "refused"

    async with working(app):
        assert await (await ask.submit()).result(timeout=60) == "refused"


@in_one_partition
async def test_a_slot_can_be_held_outside_an_execution(app: App) -> None:
    stage = Stage()

    @app.task(name="ask", limit=Limit("api", concurrency=1))
    async def ask() -> None:
        await stage.play("api")

    async with working(app):
        quotas = (await app.client()).quotas
        async with quotas.admitted("api"):
            run = await ask.submit()
            with pytest.raises(LimitReached):
                async with quotas.admitted("api"):
                    raise AssertionError("a second slot")
            await becomes(lambda: in_line(app, "api", ""), 1)
            assert not stage.running
        await becomes(lambda: stage.running["api"], 1)
        stage.go.set()
        await run.result(timeout=60)


async def test_tenants_take_turns_however_much_one_of_them_submits(app: App) -> None:
    started: list[str] = []

    @app.task(name="export", fair_by="tenant")
    async def export(tenant: str) -> None:
        started.append(tenant)

    runs = await export.submit_many([("acme",)] * 30 + [("beta",)] * 2)
    runs.append(await export.submit("gamma"))
    async with working(app, concurrency=1):
        for run in runs:
            await run.result(timeout=60)
    assert sorted(started[:3]) == ["acme", "beta", "gamma"]
    assert started[:5].count("beta") == 2


@in_one_partition
async def test_a_lane_has_a_limit_and_its_tenants_take_weighted_turns(app: App) -> None:
    started: list[str] = []
    running = most = 0
    app.lane("exports", concurrency=2, fair_by="tenant", weights={"acme": 3})

    @app.task(name="export", lane="exports")
    async def export(tenant: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        started.append(tenant)
        await asyncio.sleep(0.01)
        running -= 1

    @app.task(name="tidy", lane="exports")
    async def tidy() -> str:
        return "has no tenant"

    runs = await export.submit_many([("acme",)] * 30 + [("beta",)] * 30)
    tidied = await tidy.submit()
    async with working(app, concurrency=8):
        for run in runs:
            await run.result(timeout=60)
        assert await tidied.result(timeout=60) == "has no tenant"
    assert most == 2
    assert 13 <= started[:20].count("acme") <= 16
    client = await app.client()
    info = await client.lanes.get("exports")
    assert (info.concurrency, info.fair_by, info.is_set) == (2, "tenant", False)
    info = await client.lanes.set("exports", rate="100/min", clear=["concurrency"])
    assert (info.concurrency, info.rate, info.weights) == (None, 100, {"acme": 3})
    assert (await client.lanes.lift("exports")).concurrency == 2


async def test_a_lane_that_makes_no_sense_is_refused(app: App) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("concurrency", {"concurrency": 0}),
        ("rate", {"rate": "fast"}),
        ("fair_by", {"fair_by": "two words"}),
        ("weights['acme']", {"weights": {"acme": 101}}),
        ("weights", {"weights": ["acme"]}),
    ]
    for field, options in wrong:
        with pytest.raises(InvalidInput) as caught:
            app.lane("exports", **options)
        assert caught.value.field == field
    app.lane("exports", concurrency=2)
    with pytest.raises(InvalidInput, match="other options"):
        app.lane("exports", concurrency=3)
    assert app.lanes["exports"].concurrency == 2


async def test_a_worker_with_other_numbers_changes_the_limit_when_it_starts(
    make_app: AppMaker,
) -> None:
    stage = Stage()

    async def ask(tenant: str) -> None:
        await stage.play(tenant)

    old, new = make_app(version="1"), make_app(version="2")
    limit = Limit("tenant", concurrency=1, key="tenant")
    task = old.task(name="ask", limit=limit)(ask)
    new.task(name="ask", limit=Limit("tenant", concurrency=3, key="tenant"))(ask)
    runs = await task.submit_many([("acme",)] * 5)
    async with working(old):
        await becomes(lambda: stage.running["acme"], 1)
        async with working(new):
            await becomes(lambda: stage.running["acme"], 3)
            stage.go.set()
            for run in runs:
                await run.result(timeout=60)


async def test_a_limit_that_nobody_gave_numbers_is_refused_by_name(app: App) -> None:
    @app.task(name="ask", limit=Limit("openai"))
    async def ask() -> None: ...

    with pytest.raises(QuotaNotFound, match="openai"):
        await ask.submit()
    await (await app.client()).quotas.create(Limit("openai", concurrency=2))
    await ask.submit()


async def test_a_worker_registers_its_tasks_with_schemas_and_limits(app: App) -> None:
    @app.task(name="ask", version="3", limit=Limit("tenant", concurrency=2, key="tenant"))
    async def ask(tenant: str, count: int = 1) -> list[str]:
        return [tenant] * count

    client = await app.client()
    with pytest.raises(TaskNotFound):
        await client.tasks.describe("nothing")
    async with working(app):
        told = await client.tasks.describe("ask")
    assert told.version == "3"
    assert told.arguments is not None
    assert told.arguments["properties"]["count"] == {"title": "Count", "type": "integer"}
    assert told.arguments["required"] == ["tenant"]
    assert told.result == {"items": {"type": "string"}, "type": "array"}
    assert told.limits == [
        {"kind": "quota", "name": "tenant", "is_keyed": True, "argument": "tenant"}
    ]
    names = {one.task: one.is_limited for one in await client.tasks.list()}
    assert names == {"ask": True}


@in_one_partition
async def test_flows_schedules_and_transactions_name_the_limits_of_their_tasks(
    app: App, db: Any
) -> None:
    @app.every(timedelta(days=1), args=("acme",))
    @app.task(name="ask", limit=Limit("tenant", concurrency=2, key="tenant"))
    async def ask(tenant: str) -> str:
        return tenant

    async with app.flow("two") as flow:
        flow.add(ask, "acme")
        flow.add(ask, "beta")
    connection = await db.connect()
    async with connection.transaction():
        await ask.submit("gamma", via=connection)
    await ask.submit("acme", key="once")
    await app.fire_schedules()
    rows = await db.fetch(
        "select g.key, count(*) from ff.execution e"
        " join ff.gate g on g.gate_id = any (e.quota_ids) group by 1"
    )
    assert {row["key"]: row["count"] for row in rows} == {"acme": 2, "beta": 1, "gamma": 1}


async def test_one_submission_has_its_own_limit_budget_and_turn(app: App) -> None:
    """The lines of the specification: numbers of a limit, limits by key, a budget, `using`."""
    spent: list[str] = []

    @app.task(name="summarise", limit=Limit("openai", concurrency=10, rate="100/min"))
    async def summarise(text: str) -> str:
        return text

    @app.task(name="answer", limit=[Limit("tenant", concurrency=2, key="tenant"), Limit("openai")])
    async def answer(tenant: str) -> str:
        return tenant

    @app.task(name="bill", limit=Limit("region", concurrency=1, key=lambda order: order["region"]))
    async def bill(order: dict[str, str]) -> str:
        return order["region"]

    @app.task(name="plain")
    async def plain(ctx: Context, tenant: str) -> str:
        await ctx.usage(tokens=120, usd="0.02")
        spent.append(tenant)
        return tenant

    monthly = Budget(
        "monthly", key="tenant", usd="50.00", tokens=1_000_000, period="month", tz="UTC",
        on_exceed="suspend",
    )  # fmt: skip
    mine = plain.using(limit=Limit("openai"), budget=monthly, fair_by="tenant")
    runs = [
        await summarise.submit("acme"),
        await answer.submit("acme"),
        await bill.submit({"region": "acme"}),
        await mine.submit("acme"),
    ]
    client = await app.client()
    (gate,) = await client.quotas.gates("region")
    assert gate.key == "acme"
    row = await client.executions.describe(runs[-1].id)
    assert row.public_state == PublicState.WAITING
    async with working(app):
        assert [await run.result(timeout=60) for run in runs] == ["acme"] * 4
    status = await client.budgets.get("monthly", key="acme")
    assert (status.usage["tokens"], status.usage["usd"]) == (120, 20_000)
    assert spent == ["acme"]
    assert [gate.limit.name for gate in mine.submission(("acme",), {}).quotas] == ["openai"]
    assert mine.submission(("acme",), {}).fair_key == "acme"
    assert plain.submission(("acme",), {}).fair_key is None


@in_one_partition
async def test_submissions_with_fair_by_of_their_own_take_turns(app: App) -> None:
    started: list[str] = []

    @app.task(name="export")
    async def export(tenant: str) -> None:
        started.append(tenant)

    fair = export.using(fair_by="tenant")
    runs = await fair.submit_many([("acme",)] * 20 + [("beta",)] * 2)
    async with working(app, concurrency=1):
        for run in runs:
            await run.result(timeout=60)
    assert started[:4].count("beta") == 2
