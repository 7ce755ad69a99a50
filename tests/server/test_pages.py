"""The pages for operators: approvals, schedules, lanes, quotas, budgets and acts on many, and the
public page of a waitpoint."""

from __future__ import annotations

import asyncio
import re
import shlex
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import BaseModel

from flowfabric import Budget, Context, Fixed, InvalidInput, Limit, PublicState, Retry
from flowfabric.core.subscription import EventFilter
from flowfabric.dashboard.details import copies_of
from flowfabric.db import session
from flowfabric.doctor import Finding, Level, Report, Verdict
from flowfabric.server import principals
from flowfabric.server.dashboard import system
from flowfabric.server.principals import COOKIE
from server.browsing import HOSTILE, OWN, Page, Visitor, sign_in
from server.stage import THEIRS, World
from steps.stage import until
from worker.apps import working
from worker.waiting import eventually

HTML = {"accept": "text/html"}


class Receipt(BaseModel):
    amount: int
    note: str = ""


@pytest.fixture
async def operator(world: World) -> Visitor:
    return await sign_in(world, "read", "operate")


@pytest.fixture
async def reader(world: World) -> Visitor:
    return await sign_in(world, "read")


async def ask(world: World, question: str, **options: Any) -> tuple[Any, dict[str, str]]:
    """Let an execution ask for an approval; return its run and the tokens of the approvers."""
    tokens: dict[str, str] = {}

    def send(request: Any) -> None:
        tokens[request.approver] = request.token

    @world.app.task(name="ship")
    async def ship(ctx: Context) -> list[Any]:
        team = await ctx.approval(question, ask=send, **options)
        return [bool(team), list(team.approved_by), team.comments]

    run = await ship.submit()
    async with working(world.app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    return run, tokens


async def finish(world: World, run: Any) -> Any:
    async with working(world.app, concurrency=1):
        return await run.result(timeout=60)


async def test_an_operator_answers_an_approval_from_the_inbox(world, operator, reader):
    run, _ = await ask(world, "Ship order 7?", details={"order": 7}, approvers=["ada", "bob"])
    assert "Ship order 7?" in (await operator.look(f"/executions/{run.id.uuid}")).text
    page = await operator.look("/approvals")
    assert all(text in page.words for text in ("Ship order 7?", "order 7", "0 of 2 approvals"))
    assert page.acts == {"/approvals/approve", "/approvals/deny"}
    assert (await reader.look("/approvals")).acts == set()
    fields = {one.get("name"): one.get("value") for one in page.all("input")}
    form = {"id": fields["id"], "approval": fields["approval"], "comment": "go"}
    await reader.act("/approvals/approve", 403, **form, approver="ada")
    await operator.act("/approvals/burn", 404, **form, approver="ada")
    await operator.act("/approvals/approve", 422, **{**form, "approval": "x"}, approver="ada")
    await operator.act("/approvals/approve", 404, **form, approver="eve")
    assert await operator.act("/approvals/approve", **form, approver="ada") == (
        "/dashboard/approvals"
    )
    assert "approved by ada (token tests" in (await operator.look("/approvals")).words
    # One operator answers for one approver.
    await operator.act("/approvals/deny", 409, **form, approver="bob")
    other = await sign_in(world, "read", "operate")
    await other.act("/approvals/approve", **form, approver="bob")
    assert (await finish(world, run))[:2] == [True, ["ada", "bob"]]
    assert "No approval is open" in (await operator.look("/approvals")).words


async def test_the_holder_of_a_token_answers_on_a_page_of_its_own(world):
    run, tokens = await ask(world, HOSTILE, details={"<b>": HOSTILE}, approvers=["ada", "bob"])
    anybody = world.with_token(None)
    shown = await anybody.get(f"/w/{tokens['ada']}", headers=HTML)
    page = Page(shown.text)
    assert (shown.status_code, shown.headers["referrer-policy"]) == (200, "same-origin")
    assert HOSTILE in page.text
    # Nothing else of the system is there: no script, no other page, no name of the task.
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "a", "b", "nav")] == []
    assert "ship" not in shown.text
    assert str(run.id.uuid) not in shown.text
    assert await run.state() == "suspended"

    address = f"/w/{tokens['ada']}/answer"
    assert page.acts == {address}
    for _ in range(2):  # sent twice, it is the same answer
        sent = await anybody.post(address, data={"decision": "approve", "comment": "go"})
        assert (sent.status_code, sent.headers["location"]) == (303, f"/w/{tokens['ada']}")
    other = await anybody.post(address, data={"decision": "deny"})
    assert other.status_code == 409
    again = Page((await anybody.get(f"/w/{tokens['ada']}", headers=HTML)).text)
    assert "You have approved this" in again.words
    assert again.acts == set()
    await anybody.post(f"/w/{tokens['bob']}/answer", data={"decision": "approve"})
    assert await finish(world, run) == [True, ["ada", "bob"], {"ada": "go"}]
    late = await anybody.get(f"/w/{tokens['bob']}", headers=HTML)
    assert "You have approved this" in Page(late.text).words


async def test_the_act_that_helps_stands_out(world, operator):
    """The first act did, such as a priority for a lane that is paused."""
    client = await world.client()
    waits, fails = await world.app.tasks["add"].submit(1), await world.app.tasks["fail"].submit()
    async with working(world.app, concurrency=1):
        await until(fails, PublicState.FAILED)
        assert await waits.result(timeout=60) == 2
    asks, _ = await ask(world, "Ship?", approvers=["ada"])
    paused = await world.app.tasks["add"].using(lane="mail").submit(1)
    await client.lanes.pause("mail", reason="provider is down")
    found = {}
    for name, run in {"failed": fails, "done": waits, "asks": asks, "paused": paused}.items():
        page = await operator.look(f"/executions/{run.id.uuid}")
        leads = [*page.all("a"), *page.all("button")]
        found[name] = [
            str(one.get("href") or one.get("formaction")).rpartition("/")[2]
            for one in leads
            if "yes" in (one.get("class") or "") or one.get("class") == "button"
        ]
    assert found == {
        "failed": ["replay"],
        "done": [],
        "asks": ["approvals"],
        "paused": ["lanes#lane-mail"],
    }


async def test_what_is_held_is_counted_as_waiting(world, operator):
    """It was listed as waiting, below a tile that said 0."""
    client = await world.client()
    await world.app.tasks["add"].submit(1)
    (claimed,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    await client.executions.hold(claimed, "its code has changed")
    assert re.search(r"Overview 1 ?○ waiting", (await operator.look("")).words)
    assert "○ waiting 1" in (await operator.look("/executions")).words


async def test_a_fresh_installation_says_what_to_do_first(operator):
    assert (
        "No execution yet. Submit one: flowfabric submit"
        in (await operator.look("/executions")).words
    )
    filtered = await operator.look("/executions?where=task%3Dnobody")
    assert "No execution matches." in filtered.words


async def test_every_wrong_token_gets_the_same_page(world):
    _, tokens = await ask(world, "Ship?", approvers=["ada"])
    anybody = world.with_token(None)
    wrong = {"x", tokens["ada"][:-2] + "aa", "ffw_" + "A" * 100}
    pages = {token: await anybody.get(f"/w/{token}", headers=HTML) for token in wrong}
    assert {one.status_code for one in pages.values()} == {404}
    texts = {one.text for one in pages.values()}
    assert len(texts) == 1
    (text,) = texts
    assert "This link is not valid" in text
    assert "ask its sender for a new one" in text  # not: the token of a waitpoint
    for token in wrong:
        sent = await anybody.post(f"/w/{token}/answer", data={"decision": "approve"})
        assert sent.status_code == 404
    plain = await anybody.get(f"/w/{tokens['ada']}")
    assert plain.json() == {"to_answer": "POST a JSON object with a value to this address."}


async def test_the_form_of_a_waitpoint_follows_the_type_of_its_answer(world):
    token: list[str] = []

    @world.app.task(name="order")
    async def order(ctx: Context) -> str:
        point = await ctx.waitpoint("payment")
        token.append(point.token)
        receipt = await point.wait(Receipt, timeout=timedelta(hours=1))
        return f"{receipt.amount} {receipt.note}"

    run = await order.submit()
    async with working(world.app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    anybody = world.with_token(None)
    page = Page((await anybody.get(f"/w/{token[0]}", headers=HTML)).text)
    assert {one.get("name") for one in page.all("input")} == {"value.amount", "value.note"}
    address = f"/w/{token[0]}/answer"
    for form, problem in (
        ({}, "amount"),
        ({"value.amount": "many"}, "amount"),
    ):
        refused = await anybody.post(address, data=form)
        assert refused.status_code == 422
        assert problem in Page(refused.text).words
    assert await run.state() == "suspended"
    done = await anybody.post(address, data={"value.amount": "7", "value.note": "thanks"})
    assert done.status_code == 303
    assert await finish(world, run) == "7 thanks"
    told = Page((await anybody.get(f"/w/{token[0]}", headers=HTML)).text)
    assert "Your answer was received" in told.words


async def test_a_schedule_is_shown_in_words_and_paused(world, operator, reader, clock):
    @world.app.cron("0 9 * * 1-5", tz="Europe/Berlin", name="reports")
    async def report() -> None: ...

    client = await world.client()
    async with working(world.app):
        await eventually(client.schedules.list, what="the schedule is declared")
    words = "at 09:00 on Monday to Friday, Europe/Berlin time"
    assert words in (await reader.look("/schedules")).words
    one = "/schedules/one?name=reports&app=shop"
    page = await operator.look(one)
    assert words in page.words
    assert page.words.count(" UTC in ") == 5
    assert page.acts == {"/schedules/run", "/schedules/pause"}
    assert (await reader.look(one)).acts == set()
    form = {"name": "reports", "app": "shop"}
    await operator.act("/schedules/pause", 422, **form)
    await operator.act("/schedules/pause", **form, reason="holiday")
    assert "It is paused by token tests" in (await operator.look(one)).words
    await operator.act("/schedules/resume", **form, reason="back")
    await reader.act("/schedules/run", 403, **form)
    await operator.act("/schedules/burn", 404, **form, reason="x")
    once = next(one["value"] for one in page.all("input") if one.get("name") == "once")
    ran = await operator.act("/schedules/run", **form, once=once)
    assert await operator.act("/schedules/run", **form, once=once) == ran, "a double click"
    await operator.act("/schedules/run", 422, **form, once="x")
    assert ran.startswith("/dashboard/executions/")
    assert "report" in (await operator.look(ran.removeprefix("/dashboard"))).text
    await clock.advance(timedelta(days=8))
    assert "reports is" in (await operator.look("")).words


async def test_lanes_and_quotas_are_changed_with_a_reason(world, operator, reader):
    client = await world.client()
    await world.app.tasks["add"].submit(1)
    await client.quotas.create(Limit("api", concurrency=4))
    page = await operator.look("/lanes")
    assert page.acts == {"/lanes/pause", "/lanes/drain", "/lanes/disable", "/quotas/set"}
    assert "At most 4 at once" in page.words
    assert (await reader.look("/lanes")).acts == set()
    form = {"lane": "default", "reason": "mail is down"}
    await reader.act("/lanes/pause", 403, **form)
    await operator.act("/lanes/pause", 422, lane="default")
    await operator.act("/lanes/pause", 422, **form, until="soon")
    await operator.act("/lanes/pause", **form, until="30m")
    lane = await client.lanes.get("default")
    assert (lane.state, lane.reason) == ("paused", "mail is down")
    assert lane.resumes_at is not None
    assert "token tests" in str(lane.changed_by)
    await operator.act("/lanes/resume", **form)
    assert (await client.lanes.get("default")).state == "active"
    await operator.act("/lanes/resume", 404, lane="nowhere", reason="x")
    quota = {"quota": "api", "reason": "slow"}
    await operator.act("/quotas/set", 422, **quota)
    await operator.act("/quotas/set", **quota, concurrency="2", rate="100/min")
    assert "At most 2 at once, and at most 100 starts per" in (await operator.look("/lanes")).words
    await operator.act("/quotas/lift", **quota)
    assert (await client.quotas.get("api")).concurrency == 4


async def test_a_spent_budget_needs_attention_and_is_raised(world, operator, reader):
    client = await world.client()
    await client.budgets.create(Budget("monthly", usd="2.00"))
    await client.budgets.report_usage_admin("monthly", usd="2.00")
    seen = (await reader.look("")).words
    assert "monthly is spent" in seen
    assert "Raise" not in seen
    page = await operator.look("/budgets")
    assert "2.00 of 2.00" in page.words
    assert page.acts == {"/budgets/raise", "/budgets/reset"}
    assert (await reader.look("/budgets")).acts == set()
    form = {"budget": "monthly", "key": "", "reason": "end of the month"}
    await reader.act("/budgets/reset", 403, **form)
    await operator.act("/budgets/raise", 422, **form, dimension="hops", amount="9")
    await operator.act("/budgets/raise", 422, **form, dimension="usd", **{"amount.usd": "many"})
    await operator.act("/budgets/raise", **form, dimension="usd", **{"amount.usd": "5.00"})
    found = await client.budgets.get("monthly")
    assert (found.is_shut, found.hard_limits) == (False, {"usd": 5_000_000})
    await operator.act("/budgets/lift", **form)
    await operator.act("/budgets/reset", **form)
    assert (await client.budgets.get("monthly")).usage.get("usd", 0) == 0


async def test_an_act_on_all_that_match_is_previewed(world, operator, reader):
    add = world.app.tasks["add"]
    runs = await add.submit_many([(n,) for n in range(3)])
    where = "task=add"
    await reader.look(f"/bulk?verb=cancel&where={where}", 403)
    await operator.look("/bulk?verb=cancel", 422)
    await operator.look(f"/bulk?verb=burn&where={where}", 422)
    page = await operator.look(f"/bulk?verb=cancel&where={where}")
    assert "Cancel 3 executions?" in page.words
    form = {str(one["name"]): str(one.get("value") or "") for one in page.all("input")}
    later = await add.submit(9)
    await operator.act("/bulk", 422, **form)
    await reader.act("/bulk", 403, **{**form, "reason": "x"})
    assert "Changed 3 of 3" in await operator.act("/bulk", 200, **{**form, "reason": "a mistake"})
    assert {await run.state() for run in runs} == {"cancelled"}
    assert await later.state() == "waiting"
    client = await world.client()
    assert (await client.executions.describe(runs[0].id)).cancellation_reason == "a mistake"


async def test_a_signal_and_a_resume_are_sent_from_the_page(world, operator):
    @world.app.task(name="wait", signals={"go": int})
    async def wait(ctx: Context) -> list[int]:
        first = await ctx.wait_for_signal("go", int)
        return [first, await ctx.wait_for_signal("go", int, default=-1)]

    run = await wait.submit()
    place = f"/executions/{run.id.uuid}"
    async with working(world.app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        page = await operator.look(place)
        assert page.acts == {f"{place}/{act}" for act in ("signal", "resume", "cancel")}
        await operator.act(f"{place}/signal", 422, name="go", value="{")
        await operator.act(f"{place}/signal", 422, name="go", value='"text"')
        await operator.act(f"{place}/signal", 422, name="stop", value="1")
        await operator.act(f"{place}/signal", name="go", value="7")
        client = await world.client()
        for _ in range(600):
            info = await client.executions.describe(run.id)
            if info.public_state == "suspended" and info.step_count == 2:
                break
            await until(run, PublicState.SUSPENDED)
        await operator.act(f"{place}/resume", reason="nobody answers", version=str(info.version))
        assert await run.result(timeout=60) == [7, -1]


async def test_a_replay_starts_at_a_chosen_step_and_a_failed_flow_is_retried(world, operator):
    seen: list[str] = []

    @world.app.task(name="steps")
    async def steps(ctx: Context) -> None:
        await ctx.step("first", seen.append, "first")
        await ctx.step("second", seen.append, "second")

    @world.app.task(name="flaky", retry=Retry(max_retries=0))
    async def flaky() -> int:
        seen.append("flaky")
        if seen.count("flaky") == 1:
            raise ValueError("once")
        return 1

    run = await steps.submit()
    async with world.app.flow("sums") as f:
        f.add(flaky)
    await finish(world, run)
    client = await world.client()
    place = f"/executions/{run.id.uuid}"
    info = await client.executions.describe(run.id)
    form = {"reason": "again", "version": str(info.version)}
    assert "from second" in (await operator.look(place)).words
    await operator.act(f"{place}/replay", 422, **form, **{"from": "0 third"})
    await operator.act(f"{place}/replay", **form, **{"from": "0 second"})
    await finish(world, run)
    assert [one for one in seen if one != "flaky"] == ["first", "second", "second"]

    flow = f"/flows/{f.run.id.uuid}"
    async with working(world.app, concurrency=1):
        await client.results.wait((await client.flows.members(f.run.id))[0].id)
    page = await operator.look(flow)
    assert page.acts == {f"{flow}/retry-failed"}
    await operator.act(f"{flow}/burn", 404, reason="x")
    await operator.act(f"{flow}/retry-failed", reason="it was a glitch")
    async with working(world.app, concurrency=1):
        await client.results.wait((await client.flows.members(f.run.id))[0].id)
    assert (await client.flows.summary(f.run.id)).state == "completed"


async def test_the_differences_between_failures_are_shown(world, reader):
    tries: list[int] = []

    @world.app.task(name="change", retry=Retry(max_retries=1, backoff=Fixed(timedelta(0))))
    async def change() -> None:
        tries.append(1)
        raise ValueError(f"try {len(tries)}")

    run = await change.submit()
    async with working(world.app, concurrency=1):
        await (await world.app.client()).results.wait(run.id)
    page = await reader.look(f"/executions/{run.id.uuid}")
    assert "-ValueError: try 1" in page.text
    assert "+ValueError: try 2" in page.text
    for text in ("flowfabric show", "curl -H", "app.get(", "async def test_change(ff: Harness)"):
        assert text in page.text


async def test_a_copied_text_submits_the_same_execution_again(world, http):
    client = await world.client()
    task = world.app.tasks["add"].using(lane="mail", priority=7, tags={"team.name": "it's"})
    run = await task.submit(40, 2)
    info = await client.executions.describe(run.id)
    copies = dict(copies_of(info, "http://127.0.0.1:9090"))
    *_, submit = copies["Shell"].split("\n")
    assert shlex.split(submit) == [
        *("flowfabric", "submit", "MODULE:add", '{"x": 40, "y": 2}', "--lane", "mail"),
        *("--priority", "7", "--tag", "team.name=it's"),
    ]
    first, second = copies["curl"].replace("\\\n", "").split("\n")
    assert (await http.get(shlex.split(first)[-1])).json()["task"] == "add"
    *_, body, address = shlex.split(second)
    sent = await http.post(address, content=body, headers={"content-type": "application/json"})
    made = [await client.executions.find(sent.json()["id"])]
    lines = copies["Python"].replace("\n", "\n    ")
    names: dict[str, Any] = {"app": world.app}
    exec(f"async def copied():\n    {lines}\n    return again", names)
    made.append((await names["copied"]()).id)
    for id in made:
        other = await client.executions.describe(id)
        for name in ("task", "payload", "lane", "priority", "tags"):
            assert getattr(other, name) == getattr(info, name), name
    compile(copies["pytest"], "copied", "exec")
    assert "ff.submit(add, x=40, y=2)" in copies["pytest"]


async def test_an_execution_shows_how_much_of_its_limits_is_used(world, reader):
    @world.app.task(
        name="ask",
        limit=[Limit("gpu", concurrency=2), Limit("api", rate="100/min", key="tenant")],
        budget=Budget("spend", key="tenant", usd="2.00", tokens=1000),
    )
    async def ask_model(tenant: str) -> None: ...

    run = await ask_model.submit("acme")
    free = await world.app.tasks["add"].submit(1)
    client = await world.client()
    await client.budgets.report_usage_admin("spend", key="acme", usd="0.50")
    info = await client.executions.describe(run.id)
    assert [(one.kind, one.name, one.key) for one in info.limits] == [
        ("quota", "api", "acme"),
        ("quota", "gpu", ""),
        ("budget", "spend", "acme"),
    ]
    words = (await reader.look(f"/executions/{run.id.uuid}")).words
    assert re.search("api of acme 0 0 of 100 starts per [^;]+; 0 in line", words)
    assert "gpu 0 0 of 2 run; 0 in line" in words
    assert "0.50 of 2.00 usd" in words
    assert "0 of 1000 tokens" in words
    assert "Limits" not in (await reader.look(f"/executions/{free.id.uuid}")).words
    await client.quotas.delete("gpu", reason="gone")
    assert "of 2 run" not in (await reader.look(f"/executions/{run.id.uuid}")).words


async def test_a_flow_shows_its_critical_path(world, reader):
    add = world.app.tasks["add"]
    async with world.app.flow("sums") as f:
        first = f.add(add, 1, name="first")
        f.add(add, 1, name="other")
        f.add(add, first.result, name="last")
    page = await reader.look(f"/flows/{f.run.id.uuid}")
    assert "Critical path" not in page.words
    async with working(world.app, concurrency=1):
        for member in await (await world.client()).flows.members(f.run.id):
            await (await world.client()).results.wait(member.id)
    for view in ("", "?view=gantt"):
        words = (await reader.look(f"/flows/{f.run.id.uuid}{view}")).words
        assert re.search(r"Critical path: first \d+\w+ → last \d+\w+ ", words), view


async def test_a_form_of_another_site_changes_nothing(world, operator):
    client = await world.client()
    await world.app.tasks["add"].submit(1)
    for path in ("/lanes/pause", "/approvals/approve", "/schedules/run", "/bulk", "/budgets/reset"):
        for headers in ({"origin": "http://evil.example"}, {}, {**OWN, "sec-fetch-site": "cross"}):
            answer = await operator.post(
                f"/dashboard{path}", data={"lane": "default", "reason": "x"}, headers=headers
            )
            assert answer.status_code == 403, path
    assert (await client.lanes.get("default")).state == "active"


async def test_failures_are_grouped_and_a_task_is_submitted_by_its_form(world, reader):
    submitter = await sign_in(world, "read", "operate", "submit")
    failed = await world.app.tasks["fail"].submit_many([()] * 3)
    async with working(world.app):
        for run in failed:
            await (await world.app.client()).results.wait(run.id)
    groups = (await (await world.client()).executions.failures()).groups
    assert [(one.task, one.category, one.number) for one in groups] == [("fail", "ValueError", 3)]
    assert groups[0].place == "server.stage.make_tasks.<locals>.fail"
    for path in ("/tasks", "/tasks/one?name=fail"):
        page = await submitter.look(path)
        assert "3 ValueError server.stage.make_tasks.<locals>.fail fail" in page.words
    page = await submitter.look("/tasks/one?name=add")
    assert page.acts == {"/tasks/submit"}
    assert {one.get("name") for one in page.all("input")} >= {"value.x", "value.y"}
    assert (await reader.look("/tasks/one?name=add")).acts == set()
    await reader.look("/tasks/one?name=nothing", 404)
    await reader.act("/tasks/submit", 403, **{"task": "add", "value.x": "1"})
    await submitter.act("/tasks/submit", 422, **{"task": "add", "value.x": "many"})
    await submitter.act("/tasks/submit", 404, task="nothing")
    made = await submitter.act("/tasks/submit", **{"task": "add", "value.x": "40", "value.y": "2"})
    shown = await submitter.look(made.removeprefix("/dashboard"))
    assert '"x": 40' in shown.text


async def test_events_and_the_audit_say_what_happened_and_who_did_what(world, operator):
    administrator = await sign_in(world, "admin")
    run = await world.app.tasks["add"].submit(1)
    await operator.act("/lanes/pause", lane="default", reason="mail is down")
    page = await operator.look("/events")
    assert "submitted add" in page.words
    assert "No event" in (await operator.look("/events?kind=failed")).words
    # A long transaction is shown in parts.
    await world.app.tasks["add"].submit_many([(n,) for n in range(150)])
    page, sizes = await operator.look("/events?kind=submitted"), []
    while True:
        sizes.append(page.words.count("submitted add"))
        links = [str(one["href"]) for one in page.all("a") if one.get("rel") == "next"]
        if not links:
            break
        page = await operator.look(links[0].removeprefix("/dashboard"))
    assert (sum(sizes), max(sizes)) == (151, 100)
    await operator.look("/events?kind=nothing", 422)
    await operator.look("/events?since=soon", 422)
    await operator.look("/audit", 403)
    told = (await administrator.look("/audit")).words
    assert "set lane" in told
    assert "mail is down" in told
    assert await run.state() == "waiting"


async def test_subscriptions_and_webhooks_are_shown_and_reset(world, operator, reader):
    client = await world.client()
    await client.subscriptions.lease(
        "mailer",
        uuid4(),
        holder_name="worker",
        ttl=timedelta(seconds=30),
        filter=EventFilter(),
        cursor=await client.events.open(),
    )
    await client.webhooks.add("hook", "https://hooks.example.com/")
    page = await operator.look("/subscriptions")
    assert "mailer" in page.words
    assert "hooks.example.com" in page.words
    assert page.acts == {"/subscriptions/reset"}
    assert (await reader.look("/subscriptions")).acts == set()
    await operator.act("/subscriptions/reset", 422, name="mailer")
    await operator.act("/subscriptions/reset", 404, name="nobody", reason="x")
    await operator.act("/subscriptions/burn", 404, name="mailer", reason="x")
    await operator.act("/subscriptions/reset", name="mailer", reason="again", since="1h")
    assert (await client.subscriptions.get("mailer")).reason == "again"


async def test_the_system_says_what_is_kept_and_how_hints_arrive(world, monkeypatch):
    client = await world.client()
    await world.app.tasks["add"].submit(1)
    await client.lanes.set_retention("default", timedelta(days=7))
    administrator = await sign_in(world, "admin")
    world.served.state.backend.hearing.seconds = 0.0
    # A busy machine delivers a hint late.
    monkeypatch.setattr(session, "HEARING_SECONDS", 60.0)
    words = (await administrator.look("/system")).words
    assert "Hints ✓ by NOTIFY" in words
    assert "Ended executions 30d, unless" in words
    assert "Ended executions of the lane default 7d" in words

    async def hears_nothing(self: session.Session, connection: Any) -> bool:
        return False

    monkeypatch.setattr(session.Session, "_try_hearing", hears_nothing)
    assert "Hints ✕ by polling only" in (await administrator.look("/system")).words


async def test_the_system_is_examined_from_its_page(world, operator):
    administrator = await sign_in(world, "admin")
    await operator.look("/system", 403)
    page = await administrator.look("/system")
    assert "Not examined" in page.words
    # Only the largest tables are shown; an empty table with many indexes is one of them.
    assert re.search(r" execution \d+\.\d \w+", page.words)
    assert page.acts == {"/system/examine"}
    await operator.act("/system/examine", 403)
    await administrator.act("/system/examine")
    assert "checks in" in (await administrator.look("/system")).words


async def test_the_doctor_runs_once_at_a_time_however_often_it_is_asked(world, monkeypatch):
    """It ran as often as it was asked, each time on a connection of its own."""
    may_end, runs, arrived = asyncio.Event(), [], []
    examine, examined = system.examine, system._examined

    async def slow(connection: Any) -> Report:
        runs.append(connection)
        await may_end.wait()
        return await examine(connection)

    async def counted(call: Any) -> Report:
        arrived.append(call)
        return await examined(call)

    monkeypatch.setattr(system, "examine", slow)
    monkeypatch.setattr(system, "_examined", counted)
    administrator = await sign_in(world, "admin")
    asked = [asyncio.create_task(administrator.act("/system/examine")) for _ in range(5)]
    await eventually(lambda: len(arrived) == 5 and len(runs) == 1)
    asked[0].cancel()  # a visitor who goes away stops nobody else's run
    await asyncio.wait([asked[0]])
    may_end.set()
    await asyncio.gather(*asked[1:])
    assert len(runs) == 1
    await administrator.act("/system/examine")
    assert len(runs) == 2


async def test_a_finding_about_no_execution_tells_nothing_of_another_namespace(world):
    administrator = await sign_in(world, "admin")
    problem = "budget llm, key bob@example.org is open"
    found = Finding(name="B01", level=Level.ERROR, problem=problem)
    second = timedelta(seconds=1)
    verdict = Verdict(name="B01", title="x", findings=(found,), duration=second)
    world.served.state.backend.report = Report(verdicts=(verdict,), duration=second)
    words = (await administrator.look("/system")).words
    assert "B01" in words
    assert "bob" not in words


async def test_a_replay_with_an_edited_input_is_recorded_as_such(world, operator):
    run = await world.app.tasks["add"].submit(1)
    await finish(world, run)
    client = await world.client()
    place = f"/executions/{run.id.uuid}"
    assert "Edit the input" in (await operator.look(place)).words

    async def replay(text: str, status: int = 303) -> None:
        info = await client.executions.describe(run.id)
        form = {"reason": "a wrong number", "version": str(info.version), "input": text}
        await operator.act(f"{place}/replay", status, **form)

    await replay("{", 422)
    await replay('{"z": 1}', 422)
    await replay('{"x": "many"}', 422)
    await replay('{"x": 1}')  # as it was: no edit
    assert await finish(world, run) == 2
    await replay('{"x": 40, "y": 2}')
    assert await finish(world, run) == 42
    await replay(f'{{"x": 1{"0" * 400}}}')  # too long for the row: it goes into the body
    assert await finish(world, run) == 10**400 + 1
    await replay('{"x": 3}')
    assert await finish(world, run) == 4
    replays = [one for one in await client.executions.events(run.id) if one.kind == "replayed"]
    assert [(one.detail or {}).get("input") for one in replays] == [None] + ["edited"] * 3
    assert "token tests" in str(replays[-1].actor)


async def test_an_open_page_is_told_which_topics_change(world, serving):
    run = await world.app.tasks["add"].submit(1)
    token = await world.token("read", "operate")
    topic = f"execution:{run.id.uuid}"
    async with httpx.AsyncClient(base_url=serving, cookies={COOKIE: token}, timeout=60) as browser:
        bad = await browser.get("/dashboard/live")
        assert bad.status_code == 422
        async with browser.stream(
            "GET", "/dashboard/live", params={"topic": [topic, "lane:other"]}
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: open"
            await world.app.tasks["add"].submit(2)  # another execution, in another lane
            await (await world.client()).executions.cancel(run.id, reason="x")
            async for line in lines:
                if line.startswith("data: [") and line != "data: []":
                    break
    assert line == f'data: ["{topic}"]'


async def test_an_open_page_is_told_nothing_after_its_token_is_revoked(world, serving, monkeypatch):
    """It was told of one more change."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    client = await world.client()
    made = await client.tokens.create("page", ["read"])
    foreign = await world.token("admin", namespace=THEIRS)
    run = await world.app.tasks["add"].submit(1)
    asked = {"topic": ["overview", f"execution:{run.id.uuid}"]}

    async def opened(browser: Any) -> Any:
        lines = browser.aiter_lines()
        assert await anext(lines) == "event: open"
        assert await anext(lines) == "data: []"
        return lines

    async with httpx.AsyncClient(base_url=serving, timeout=60) as browser:
        mine = {"cookie": f"{COOKIE}={made.token}"}
        theirs = {"cookie": f"{COOKIE}={foreign}"}
        async with (
            browser.stream("GET", "/dashboard/live", params=asked, headers=mine) as page,
            browser.stream("GET", "/dashboard/live", params=asked, headers=theirs) as other,
        ):
            lines, hears = await opened(page), await opened(other)
            await client.tokens.revoke(made.id)
            await client.executions.cancel(run.id, reason="x")
            assert [line async for line in lines if line and line != ":"] == []
            # The page of another namespace hears of its own changes only.
            await world.app.tasks["add"].within(THEIRS).submit(2)
            told = [line async for line in until_data(hears)]
    assert told[-1] == 'data: ["overview"]'


async def until_data(lines: Any) -> Any:
    async for line in lines:
        yield line
        if line.startswith("data: "):
            return


async def test_open_pages_share_the_reads_of_the_overview(world, reader):
    shared = world.served.state.backend.shared
    await reader.look("")
    shared.seconds = 600.0
    await reader.look("")
    await world.app.tasks["add"].submit_many([(n,) for n in range(3)])
    stale = await reader.look("")
    assert "0○ waiting" in stale.words
    shared.seconds = 0.0
    shared._known.clear()
    assert "3○ waiting" in (await reader.look("")).words


async def test_the_overview_shows_throughput_and_latency(world, reader):
    runs = await world.app.tasks["add"].submit_many([(n,) for n in range(3)])
    async with working(world.app):
        for run in runs:
            await run.result(timeout=60)
    client = await world.app.client()
    await client.minutes.roll_up()
    for path in ("", "/tasks/one?name=add"):
        words = (await reader.look(path)).words
        assert re.search(r" 1 h 3 0 100.0 %( \d+m?s){6} 6 h 3 0 ", words), path


async def test_the_chart_counts_what_ended_and_says_so_in_words(world, reader, clock):
    await clock.freeze()
    assert "No execution ended in the last 24 hours." in (await reader.look("?chart=24h")).words
    runs = [*(await world.app.tasks["add"].submit_many([(1,), (2,)]))]
    runs.append(await world.app.tasks["fail"].submit())
    client = await world.client()
    async with working(world.app):
        for run in runs:
            await client.results.wait(run.id)
    await client.minutes.roll_up()
    for path, step in (("", "a minute"), ("?chart=6h", "10 minutes"), ("?chart=24h", "an hour")):
        page = await reader.look(path)
        assert f"a bar is {step};" in page.words
        assert "above the line: 2 completed" in page.words
        assert "below the line: 1 failed" in page.words
        (label,) = [one["aria-label"] for one in page.all("svg") if one.get("class") == "plot"]
        assert "2 completed, 1 failed. Most ended from " in str(label)
        bars = [one["class"] for one in page.all("rect") if one.get("class") != "whole"]
        assert bars.count("completed") == bars.count("failed") == 2  # with the legend
        # The exact numbers are in a table.
        assert re.search(r"Exact numbers From Completed Failed \d{4}-[-\d]+ [:\d]+ 2 1", page.words)
    assert "above the line: 2 completed" in (await reader.look("/tasks/one?name=add")).words
    assert "No execution ended" in (await reader.look("/tasks/one?name=echo&chart=6h")).words
    await reader.look("?chart=2h", 422)


async def test_what_the_doctor_found_needs_attention(world, reader):
    administrator = await sign_in(world, "admin")
    run = await world.app.tasks["add"].submit(1)
    problem = "epoch 0 after 1 attempts"
    finding = Finding(name="L05", level=Level.ERROR, problem=problem, execution=run.id)
    verdict = Verdict(name="L05", title="x", findings=(finding,), duration=timedelta(0))
    world.served.state.backend.report = Report(verdicts=(verdict,), duration=timedelta(seconds=1))
    assert "The doctor found 1 error" in (await reader.look("")).words
    assert "epoch 0 after 1 attempts" in (await administrator.look("/system")).words


async def test_a_count_stops_where_it_is_told_to(world):
    client = await world.client()
    await world.app.tasks["add"].submit_many([(n,) for n in range(3)])
    for most, number, is_more in ((2, 2, True), (3, 3, False), (10_000, 3, False)):
        found = await client.executions.count(most=most)
        assert (found.number, found.is_more) == (number, is_more)
    for wrong in (0, 10_001, True):
        with pytest.raises(InvalidInput, match="most"):
            await client.executions.count(most=wrong)


async def test_a_count_reads_no_more_than_it_may(world):
    """A filter that matches few executions would otherwise read all of them."""
    client = await world.client()
    await world.app.tasks["add"].submit_many([(n,) for n in range(2600)])
    one = await client.executions.count(reads=1)
    assert (0 < one.number <= 2500, one.is_more) == (True, True)
    two = await client.executions.count(reads=2)
    assert (two.number, two.is_more) == (2600, False)
    with pytest.raises(InvalidInput, match="reads"):
        await client.executions.count(reads=0)


async def test_a_list_says_which_lane_is_stopped_and_keeps_the_other_conditions(world, reader):
    client = await world.client()
    run = await world.app.tasks["add"].using(lane="mail").submit(1)
    await client.lanes.pause("mail", reason="provider is down")
    page = await reader.look("/executions?where=lane%3Dmail+state%3Dwaiting")
    assert "the lane mail is paused" in page.words
    links = {str(one.get("href")) for one in page.all("a")}
    assert "/dashboard/executions?where=state%3Dfailed%20lane%3Dmail" in links
    words = {one.get("value") for one in page.all("option")}
    assert words >= {"state=failed", "lane=mail", "task=add"}
    # A count of all lanes would mislead beside a filter of one lane.
    assert "waiting 1" not in page.words
    assert "waiting 1" in (await reader.look("/executions?where=state%3Dwaiting")).words
    assert await run.state() == "waiting"
