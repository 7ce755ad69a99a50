"""Every act of the dashboard is clicked once, and its effect is read from the database.

A form of a template without a click fails the first test. A click that sends nothing, or another
form than the case names, fails the case.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from flowfabric import Budget, Context, Limit, PublicState, Retry
from flowfabric.client import FlowFabric
from flowfabric.core.subscription import EventFilter
from flowfabric.server.dashboard.executions import VERBS, acts_on
from server.stage import World
from steps.stage import until
from support.clock import Clock
from worker.apps import working
from worker.waiting import eventually

WHY = "because of the test"


@dataclass
class Hand:
    """A person at a browser, and the client that reads what the person has done."""

    world: World
    clock: Clock
    client: FlowFabric
    page: Any

    async def click(self, at: str, action: str, button: str = "button", **fields: str) -> None:
        """Open a page, fill in the form that has this action, and click its button."""
        if at:
            await self.page.goto(f"/dashboard{at}")
        buttons = self.page.locator(f"button[formaction$='{action}']")
        if await buttons.count():
            form = self.page.locator("form").filter(has=buttons).first
            button = f"button[formaction$='{action}']"
        else:
            form = self.page.locator(f"form[action$='{action}']").first
        folded = self.page.locator("details:not([open])").filter(has=form)
        if await folded.count():
            await folded.locator("summary").first.click()
        for name, value in fields.items():
            field = form.locator(f"[name='{name.rstrip('_')}']")
            if await field.evaluate("one => one.tagName") == "SELECT":
                await field.select_option(value)
            else:
                for edit in await form.locator("details.edit:not([open]) summary").all():
                    await edit.click()
                await field.fill(value)
        async with self.page.expect_navigation():
            await form.locator(button).first.click()
        assert not await self.page.locator(".problem").count(), await self.page.inner_text("main")

    async def finish(self, *runs: Any) -> None:
        async with working(self.world.app, concurrency=1):
            for run in runs:
                await self.client.results.wait(run.id)


async def executions(hand: Hand) -> None:
    client, add = hand.client, hand.world.app.tasks["add"]
    run = await add.submit(1)
    place = f"/executions/{run.id.uuid}"
    await hand.click(place, "/priority", priority="7", reason=WHY)
    assert (await client.executions.describe(run.id)).priority == 7
    await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", lease_ttl=timedelta(hours=1)
    )
    await hand.click(place, "/revoke-lease", reason=WHY)
    last = (await client.executions.events(run.id))[-1]
    assert (last.kind, (last.detail or {})["reason"]) == ("lease_revoked", WHY)
    await hand.click(place, "/cancel", reason=WHY)
    info = await client.executions.describe(run.id)
    assert (info.public_state, info.cancellation_reason) == ("cancelled", WHY)
    await hand.click(place, "/replay", reason=WHY, input='{"x": 40, "y": 2}', from_="fresh")
    await hand.finish(run)
    assert await run.result(timeout=60) == 42
    later = await add.using(delay=timedelta(hours=1)).submit(1)
    await hand.click(f"/executions/{later.id.uuid}", "/retry", reason=WHY)
    assert await later.state() == "waiting"

    @hand.world.app.task(name="wait")
    async def wait(ctx: Context) -> list[int]:
        return [await ctx.wait_for_signal("go", int, default=-1) for _ in range(2)]

    asked = await wait.submit()
    place = f"/executions/{asked.id.uuid}"
    async with working(hand.world.app, concurrency=1):
        await until(asked, PublicState.SUSPENDED)
    await hand.click(place, "/signal", name="go", value="7")
    async with working(hand.world.app, concurrency=1):
        await eventually(lambda: waits_again(client, asked), what="it waits for the second signal")
        await hand.click(place, "/resume", reason=WHY)
        assert await asked.result(timeout=60) == [7, -1]


async def waits_again(client: FlowFabric, run: Any) -> bool:
    info = await client.executions.describe(run.id)
    return info is not None and info.public_state == "suspended" and info.step_count == 2


async def acts_on_many(hand: Hand) -> None:
    client, add = hand.client, hand.world.app.tasks["add"]
    first, second = await add.submit_many([(1,), (2,)])

    async def click(verb: str, where: str = "task=add") -> None:
        await hand.page.goto(f"/dashboard/executions?where={where}")
        await hand.page.click(f"a.button[href*='verb={verb}']")
        await hand.click("", "/bulk", reason=WHY)
        assert "Changed 2 of 2" in re.sub(r"\s+", " ", await hand.page.inner_text("main"))

    await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", limit=2, lease_ttl=timedelta(hours=1)
    )
    await click("revoke-lease")
    assert {(await client.executions.events(one.id))[-1].kind for one in (first, second)} == {
        "lease_revoked"
    }
    await click("cancel")
    assert {await one.state() for one in (first, second)} == {"cancelled"}
    await click("replay")
    assert {await one.state() for one in (first, second)} == {"waiting"}
    failed = await hand.world.app.tasks["fail"].submit_many([(), ()])
    await hand.finish(*failed)
    await click("retry", "task=fail")
    assert {await one.state() for one in failed} == {"waiting"}


async def flows(hand: Hand) -> None:
    fails = True

    @hand.world.app.task(name="flaky", retry=Retry(max_retries=0))
    async def flaky() -> int:
        if fails:
            raise ValueError("once")
        return 1

    async with hand.world.app.flow("sums") as f:
        f.add(flaky)
    (member,) = await hand.client.flows.members(f.run.id)
    await hand.finish(member)
    fails = False
    await hand.click(f"/flows/{f.run.id.uuid}", "/retry-failed", reason=WHY)
    await hand.finish(member)
    assert (await hand.client.flows.summary(f.run.id)).state == "completed"
    async with hand.world.app.flow("more") as f:
        f.add(flaky)
    await hand.click(f"/flows/{f.run.id.uuid}", f"/flows/{f.run.id.uuid}/cancel", reason=WHY)
    assert (await hand.client.flows.describe(f.run.id)).cancel_reason == WHY


async def approvals(hand: Hand) -> None:
    tokens: list[str] = []

    @hand.world.app.task(name="ship")
    async def ship(ctx: Context) -> list[Any]:
        def ask(request: Any) -> None:
            tokens.append(request.token)

        team = await ctx.approval("Ship?", approvers=["ada"], ask=ask)
        return [bool(team), team.comments]

    for answer, button in ((True, "button.yes"), (False, "button.no")):
        run = await ship.submit()
        async with working(hand.world.app, concurrency=1):
            await until(run, PublicState.SUSPENDED)
        act = "/approvals/approve" if answer else "/approvals/deny"
        await hand.click("/approvals", act, button, approver="ada", comment=WHY)
        await hand.finish(run)
        assert await run.result(timeout=60) == [answer, {"ada": WHY}]
    run = await ship.submit()
    async with working(hand.world.app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    await hand.page.goto(f"/w/{tokens[-1]}")
    await hand.click("", "/answer", "button.no", comment=WHY)
    await hand.finish(run)
    assert await run.result(timeout=60) == [False, {"ada": WHY}]


async def limits(hand: Hand) -> None:
    client = hand.client
    await hand.world.app.tasks["add"].submit(1)
    await client.quotas.create(Limit("api", concurrency=4))
    await client.budgets.create(Budget("monthly", usd="2.00"))
    await client.budgets.report_usage_admin("monthly", usd="1.00")
    for act, state in (
        ("pause", "paused"),
        ("resume", "active"),
        ("drain", "draining"),
        ("disable", "disabled"),
    ):
        await hand.click("/lanes", f"/lanes/{act}", reason=WHY)
        lane = await client.lanes.get("default")
        assert (lane.state, lane.reason) == (state, WHY)
    await hand.click("/lanes", "/quotas/set", concurrency="2", reason=WHY)
    quota = await client.quotas.get("api")
    assert (quota.concurrency, quota.reason) == (2, WHY)
    await hand.click("/lanes", "/quotas/lift", reason=WHY)
    assert (await client.quotas.get("api")).concurrency == 4
    await hand.click("/budgets", "/budgets/raise", reason=WHY, **{"amount.usd": "5.00"})
    assert (await client.budgets.get("monthly")).hard_limits == {"usd": 5_000_000}
    await hand.click("/budgets", "/budgets/lift", reason=WHY)
    assert (await client.budgets.get("monthly")).hard_limits == {"usd": 2_000_000}
    await hand.click("/budgets", "/budgets/reset", reason=WHY)
    budget = await client.budgets.get("monthly")
    assert (budget.usage.get("usd", 0), budget.reason) == (0, WHY)


async def schedules_and_tasks(hand: Hand) -> None:
    @hand.world.app.cron("0 9 * * 1-5", name="reports")
    async def report() -> None: ...

    client, one = hand.client, "/schedules/one?name=reports&app=shop"
    async with working(hand.world.app):
        await eventually(client.schedules.list, what="the schedule is declared")
    await hand.click(one, "/schedules/pause", reason=WHY)
    found = await client.schedules.get("reports", app="shop")
    assert (found.state, found.reason) == ("paused", WHY)
    await hand.click(one, "/schedules/resume", reason=WHY)
    assert (await client.schedules.get("reports", app="shop")).state == "active"
    await hand.click(one, "/schedules/run")
    ran = await client.executions.find(hand.page.url.rpartition("/")[2])
    assert (await client.executions.describe(ran)).task == found.task
    await hand.click(
        "/tasks/one?name=add", "/tasks/submit", "button.yes", **{"value.x": "40", "value.y": "2"}
    )
    made = await client.executions.find(hand.page.url.rpartition("/")[2])
    info = await client.executions.describe(made)
    assert (info.task, info.public_state) == ("add", "waiting")


async def system(hand: Hand) -> None:
    client = hand.client
    await client.workers.register(worker_id="pool", worker_instance_id="pool-1", slots=4)
    await hand.click("/workers", "/workers/drain", reason=WHY)
    (worker,) = await client.workers.list()
    assert worker.drain_asked_at is not None
    await client.subscriptions.lease(
        "mailer",
        uuid4(),
        holder_name="worker",
        ttl=timedelta(seconds=30),
        filter=EventFilter(),
        cursor=await client.events.open(),
    )
    await hand.click("/subscriptions", "/subscriptions/reset", since="1h", reason=WHY)
    assert (await client.subscriptions.get("mailer")).reason == WHY
    await client.webhooks.add("hook", "https://hooks.example.com/")
    holder, number = uuid4(), 0
    while (await client.webhooks.get("hook")).state != "disabled":
        held = await client.webhooks.lease(
            "hook", holder, holder_name="worker", ttl=timedelta(seconds=30)
        )
        number += 1
        await client.webhooks.fail("hook", holder, held.epoch, ack_no=number, answer="503")
        await hand.clock.advance(timedelta(hours=2))
    await hand.click("/subscriptions", "/subscriptions/enable", reason=WHY)
    assert (await client.webhooks.get("hook")).state == "enabled"
    assert hand.world.served.state.backend.report is None
    await hand.click("/system", "/system/examine")
    assert hand.world.served.state.backend.report.verdicts
    await hand.click("", "/sign-out")
    await hand.page.goto("/dashboard")
    assert hand.page.url.endswith("/sign-in")


Case = Callable[[Hand], Awaitable[None]]
# The acts that each case clicks. A star stands for an id or a token.
CASES: dict[Case, set[str]] = {
    executions: {
        f"/executions/*/{act}"
        for act in ("priority", "revoke-lease", "cancel", "replay", "retry", "signal", "resume")
    },
    acts_on_many: {f"/bulk {verb}" for verb in ("retry", "replay", "cancel", "revoke-lease")},
    flows: {"/flows/*/retry-failed", "/flows/*/cancel"},
    approvals: {"/approvals/approve", "/approvals/deny", "/w/*/answer"},
    limits: {
        *(f"/lanes/{act}" for act in ("pause", "resume", "drain", "disable")),
        *(f"/quotas/{act}" for act in ("set", "lift")),
        *(f"/budgets/{act}" for act in ("raise", "lift", "reset")),
    },
    schedules_and_tasks: {
        *(f"/schedules/{act}" for act in ("pause", "resume", "run")),
        "/tasks/submit",
    },
    system: {
        *("/workers/drain", "/subscriptions/reset", "/subscriptions/enable"),
        *("/system/examine", "/sign-out"),
    },
}


def acts_in_templates() -> set[str]:
    """Return where the forms of all templates lead."""
    places = {"{{ root }}": "", "{{ info.id.uuid }}": "*", "{{ here_flow }}": "/flows/*"}
    places["{{ action }}"] = "/w/*/answer"
    found: set[str] = set()
    for file in files("flowfabric.dashboard").joinpath("templates").iterdir():
        text = file.read_text()
        forms = re.findall(r'<form method="post"[^>]*? action="([^"]*)"', text)
        assert text.count('method="post"') == len(forms), f"{file.name} has a form without action"
        for action in [*forms, *re.findall(r'formaction="([^"]*)"', text)]:
            for name, value in places.items():
                action = action.replace(name, value)
            if action.endswith("{{ act }}"):
                found |= {action.replace("{{ act }}", act) for act in _acts(text)}
            elif action == "/bulk":
                found |= {f"/bulk {verb}" for verb in VERBS}
            else:
                found.add(action)
    return found


def _acts(text: str) -> set[str]:
    """Return the values of `act` in a template: in a list of texts, or by the state."""
    if "{% for act, label in acts %}" in text:
        states = [(state, is_held) for state in PublicState for is_held in (False, True)]
        return {act for state, held in states for act, _ in acts_on(state, is_held=held)}
    if listed := re.search(r"\{% for act, .*? in \[(.*?)\]", text):
        return set(re.findall(r'\("([\w-]+)"', listed[1]))
    (chosen,) = re.findall(r'\{% set act = "(\w+)" if .*? else "(\w+)" %\}', text)
    return set(chosen)


def test_every_act_of_a_template_is_clicked_by_a_case():
    clicked = set().union(*CASES.values(), {"/sign-in"})
    assert acts_in_templates() == clicked


@pytest.mark.slow(short=1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_an_act_that_is_clicked_changes_the_database(world, clock, visit, case):
    page = await visit("admin")
    sent: set[str] = set()

    def note(request: Any) -> None:
        if request.method != "POST":
            return
        path = urlsplit(request.url).path.removeprefix("/dashboard")
        path = re.sub(r"(?<=/)[0-9a-f-]{36}(?=/)|(?<=^/w/)[^/]+", "*", path)
        verb = parse_qs(request.post_data or "").get("verb", [])
        sent.add(" ".join([path, *verb]))

    page.on("request", note)
    await case(Hand(world, clock, await world.client(), page))
    assert sent == CASES[case]
