"""People in a browser: they click, and the database changes; pages change without a reload."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from flowfabric import Budget, Context, Limit, PublicState, Retry
from flowfabric.app.run import Run
from server.stage import World
from server.traffic import make_traffic, pages_of
from steps.stage import skip, until, until_held
from support.clock import Clock
from worker.apps import working


class Walk:
    """A stranger with a mouse: counts clicks, and reads what the page says about an execution."""

    def __init__(self, world: World, clock: Clock, page: Any) -> None:
        self.world, self.clock, self.page = world, clock, page
        self.clicks = 0

    async def click(self, what: str) -> None:
        self.clicks += 1
        await self.page.click(what)

    async def look_at(self, run: Run[Any], why: str, helps: str) -> None:
        """Open an execution from a list. Its page says why it does not run, and what helps."""
        await self.click(f"a[href$='{run.id.uuid}'] >> nth=0")
        await self.page.wait_for_url(f"**/{run.id.uuid}")
        said = await self.page.inner_text(".whys")
        assert why in said
        assert f"What helps: {helps}" in said

    async def act(self, within: str, button: str) -> None:
        """Give a reason and press a button."""
        await self.page.fill(f"{within} input[name=reason]", "it was looked at")
        async with self.page.expect_navigation():
            await self.click(f"{within} >> button:has-text('{button}')")

    async def finish(self, run: Run[Any]) -> Any:
        async with working(self.world.app):
            return await run.result(timeout=60)


Trouble: TypeAlias = AsyncGenerator[None, Walk]


async def paused_lane(world: World, clock: Clock) -> Trouble:
    client = await world.client()
    run = await world.app.tasks["add"].using(lane="mail").submit(1)
    await client.lanes.pause("mail", reason="provider is down", actor="ada")
    await clock.advance(timedelta(minutes=10))
    walk = yield
    stuck = walk.page.locator(".attention", has_text="Stuck lanes")
    assert "the lane is paused" in await stuck.inner_text()
    await walk.click(".attention:has-text('Stuck lanes') >> text=See them")
    await walk.look_at(run, "is paused by ada", "Open the lane, give a reason, and press Resume.")
    await walk.click(".whys a:has-text('lane mail')")
    await walk.act("details:has-text('mail')", "Resume")
    assert (await client.lanes.get("mail")).state == "active"
    assert await walk.finish(run) == 2


async def no_worker(world: World, clock: Clock) -> Trouble:
    run = await world.app.tasks["add"].submit(1)
    await clock.advance(timedelta(minutes=10))
    walk = yield
    stuck = walk.page.locator(".attention", has_text="Stuck lanes")
    assert "no worker serves the lane" in await stuck.inner_text()
    await walk.click(".attention:has-text('Stuck lanes') >> text=See them")
    await walk.look_at(run, "No worker is alive", "Start a worker with flowfabric worker")
    assert await walk.finish(run) == 2


async def unknown_task(world: World, clock: Clock) -> Trouble:
    client = await world.client()
    run = await world.app.tasks["add"].submit(1)
    await clock.advance(timedelta(minutes=10))
    await client.workers.register(
        worker_id="old", worker_instance_id="old-1", lanes=["default"], tasks=["echo"]
    )
    walk = yield
    stuck = walk.page.locator(".attention", has_text="Stuck lanes")
    assert "1 worker of the lane cannot take it now" in await stuck.inner_text()
    await walk.click(".attention:has-text('Stuck lanes') >> text=See them")
    await walk.look_at(run, "No worker knows the task add", "Start a worker whose app has this")
    await walk.act("section[aria-label=Acts]", "Cancel")
    assert await run.state() == "cancelled"


async def changed_code(world: World, clock: Clock) -> Trouble:
    name = "fetch"

    @world.app.task(name="load")
    async def load(ctx: Context) -> str:
        found = await ctx.step(name, str.upper, "stock")
        await ctx.sleep(timedelta(minutes=45))
        return found

    run = await load.submit()
    async with working(world.app, concurrency=1):
        await until(run, PublicState.DELAYED)
    name = "download"
    async with working(world.app, concurrency=1):
        await skip(world.app, clock, timedelta(minutes=50))
        await until_held(clock.db, run)
    walk = yield
    await walk.look_at(run, "held it at step fetch", "Deploy code that runs the recorded steps")
    name = "fetch"
    await walk.act("section[aria-label=Acts]", "Retry now")
    assert await walk.finish(run) == "STOCK"


async def failed(world: World, clock: Clock) -> Trouble:
    fails = True

    @world.app.task(name="pay", retry=Retry(max_retries=0))
    async def pay() -> str:
        if fails:
            raise ValueError("the card is closed")
        return "paid"

    run = await pay.submit()
    async with working(world.app, concurrency=1):
        await until(run, PublicState.FAILED)
    walk = yield
    await walk.look_at(run, "it failed", "Read the error under Attempts.")
    assert "ValueError: the card is closed" in await walk.page.inner_text("main")
    fails = False
    await walk.act("section[aria-label=Acts]", "Replay")
    assert await walk.finish(run) == "paid"


async def full_quota(world: World, clock: Clock) -> Trouble:
    @world.app.task(name="render", limit=Limit("gpu", concurrency=1))
    async def render(n: int) -> int:
        return n

    client = await world.client()
    runs = await render.submit_many([(1,), (2,)])
    (claimed,) = await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", lanes=["default"], limit=2
    )
    (run,) = [one for one in runs if one.id != claimed.id]
    walk = yield
    await walk.click(".tiles >> text=rate limited")
    await walk.look_at(run, "It waits for the quota gpu: 1 of 1", "It starts by itself as soon as")
    await walk.click(".whys a:has-text('quota gpu')")
    await walk.page.fill("#quota-gpu input[name=concurrency]", "2")
    await walk.act("#quota-gpu", "Set")
    assert await walk.finish(run) == 2


async def spent_budget(world: World, clock: Clock) -> Trouble:
    @world.app.task(name="ask", budget=Budget("spend", usd="2.00"))
    async def ask() -> str:
        return "42"

    client = await world.client()
    await client.budgets.create(Budget("spend", usd="2.00"))
    await client.budgets.report_usage_admin("spend", usd="2.00")
    run = await ask.submit()
    await client.executions.claim(worker_id="w", worker_instance_id="w-1", lanes=["default"])
    walk = yield
    over = walk.page.locator(".attention", has_text="Over budget")
    assert "spend is spent; 1 execution waits in line" in await over.inner_text()
    await walk.click(".tiles >> text=rate limited")
    await walk.look_at(run, "It waits for the budget spend", "Open the budget, then raise")
    await walk.click(".whys a:has-text('budget spend')")
    await walk.act("#budget-spend", "Reset")
    assert await walk.finish(run) == "42"


async def open_approval(world: World, clock: Clock) -> Trouble:
    @world.app.task(name="ship")
    async def ship(ctx: Context) -> bool:
        return bool(await ctx.approval("Ship?", approvers=["ada"]))

    run = await ship.submit()
    async with working(world.app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    await clock.advance(timedelta(hours=2))
    walk = yield
    old = walk.page.locator(".attention", has_text="Old approvals")
    assert "“Ship?” has been open for" in await old.inner_text()
    await walk.click(".tiles >> text=suspended")
    await walk.look_at(run, 'of "Ship?" (no answer from ada)', "Press Answer, and approve or deny")
    await walk.click(".asked-here a")
    async with walk.page.expect_navigation():
        await walk.click("button:has-text('Approve')")
    assert await walk.finish(run) is True


TROUBLES = (no_worker, unknown_task, changed_code, failed, full_quota, spent_budget, open_approval)
SLOW = pytest.mark.slow(short=2, of="walks")


@pytest.mark.parametrize(
    "trouble",
    [paused_lane, *(pytest.param(one, marks=SLOW) for one in TROUBLES)],
    ids=lambda trouble: trouble.__name__,
)
async def test_a_stranger_finds_what_is_stuck_says_why_and_fixes_it(
    world: World, clock: Clock, visit, trouble
):
    """At most eight clicks, from the sign-in on."""
    story = trouble(world, clock)
    await anext(story)
    walk = Walk(world, clock, await visit("admin"))
    with pytest.raises(StopAsyncIteration):
        await story.asend(walk)
    print(f"{trouble.__name__}: {walk.clicks} clicks")
    assert walk.clicks <= 8


@pytest.mark.slow
async def test_an_open_page_follows_its_execution_without_a_reload(world: World, visit):
    @world.app.task(name="wait")
    async def wait(ctx: Context) -> int:
        await ctx.stream.send("it began")
        return await ctx.wait_for_signal("go", int)

    run = await wait.submit()
    page = await visit("admin")
    await page.goto(f"/dashboard/executions/{run.id.uuid}")
    await page.evaluate("window.isTheSame = true")
    async with working(world.app, concurrency=1):
        await page.wait_for_selector("h1 .suspended")
        await page.fill("input[name=name]", "go")
        await page.fill("input[name=value]", "7")
        # A page never takes away what somebody writes.
        assert await page.evaluate("window.isTheSame")
        await page.click("text=Send signal")
        await page.wait_for_selector("h1 .completed")
    assert "it began" in await page.inner_text(".frames")
    assert await run.result(timeout=60) == 7


@pytest.mark.slow
async def test_everything_works_without_javascript(world: World, visit):
    run = await world.app.tasks["add"].submit(1)
    page = await visit("admin", javascript=False)
    await page.click("nav >> text=Executions")
    await page.fill("#where", "state=waiting")
    await page.click("text=Apply")
    await page.click(f"a[href$='{run.id.uuid}'] >> nth=0")
    await page.fill("form:has([formaction$='/cancel']) input[name=reason]", "no need")
    await page.click("button[formaction$='/cancel']")
    await page.wait_for_selector("h1 .cancelled")
    assert await run.state() == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("javascript", [True, False], ids=["script", "no script"])
async def test_a_click_opens_a_folded_fan_out(world: World, visit, javascript):
    """The twelve members are one box. After the click each has a box that leads to its page, also
    when the page has read itself again."""
    add = world.app.tasks["add"]
    async with world.app.flow("nightly") as f:
        first = f.add(add, 1, name="extract")
        parts = [f.add(add, first.result, name=f"part {n}") for n in range(12)]
    page = await visit("admin", javascript=javascript)
    await page.goto(f"/dashboard/flows/{f.run.id.uuid}")
    boxes = page.locator(".picture g.node")
    assert await boxes.count() == 2
    await boxes.filter(has_text="part").click()
    await page.wait_for_url("**?unfold=yes")
    assert await boxes.count() == 13
    if javascript:
        # The picture is wider than the page. It begins in its middle, and stays where it is.
        assert await page.evaluate("document.querySelector('.picture').scrollLeft") > 100
        await page.evaluate("document.querySelector('.picture').scrollLeft = 77")
        async with working(world.app, concurrency=1):
            await page.wait_for_selector(".picture g.node.completed >> nth=12")
        assert await page.evaluate("document.querySelector('.picture').scrollLeft") == 77
    await boxes.filter(has_text="part 11").click()
    await page.wait_for_url(f"**/executions/{parts[11].id.uuid}")


@pytest.mark.slow
async def test_keys_work_on_every_list(world: World, clock: Clock, visit):
    left = await make_traffic(world, clock)
    page = await visit("admin")
    for name in LISTS:
        place = f"/dashboard{pages_of(left)[name]}"
        await page.goto(place)
        reached = []
        for _ in range(25):
            await page.keyboard.press("Tab")
            focus = await page.evaluate(FOCUS)
            if focus is None or focus["place"] in reached[:1]:  # all controls were reached
                break
            assert focus["outline"] >= 2, (name, focus)
            reached.append(focus["place"])
        assert len(reached) > 5, name
        assert reached == sorted(reached), name
        await page.goto(place)
        await page.keyboard.press("j")
        assert await page.locator(".chosen").count() == 1, name
        number = await page.evaluate("rows().length")
        places = [await page.evaluate(CHOSEN)]
        for key in "jjkk":
            await page.keyboard.press(key)
            places.append(await page.evaluate(CHOSEN))
        few = {1: [0, 0, 0, 0, 0], 2: [0, 1, 1, 0, 0]}
        assert places == few.get(number, [0, 1, 2, 1, 0]), name
        await page.keyboard.press("?")
        assert await page.is_visible("dialog[open]"), name
        await page.keyboard.press("Escape")
        await page.keyboard.press("/")
        await page.wait_for_url("**/executions*" if name == "executions" else "**/executions#where")
        assert await page.evaluate("document.activeElement.id") == "where", name
        await page.goto(place)
        # The list of workers has this address already: only a navigation shows that the keys work.
        async with page.expect_navigation(url="**/workers"):
            await page.keyboard.press("g")
            await page.keyboard.press("w")


# The control with the focus: where it stands in the document, and how wide its outline is.
FOCUS = """
    (() => {
      const one = document.activeElement, style = getComputedStyle(one);
      return one === document.body ? null : {
        place: [...document.querySelectorAll("*")].indexOf(one),
        outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
        html: one.outerHTML.slice(0, 80),
      };
    })()
"""
CHOSEN = "rows().findIndex((row) => row.classList.contains('chosen'))"
# The pages with rows or cards.
LISTS = (
    *("overview", "executions", "flows", "flow", "approvals", "schedules", "lanes", "budgets"),
    *("workers", "tasks", "task", "events", "audit", "subscriptions", "system"),
)


@pytest.mark.slow
async def test_keys_move_through_a_list_and_between_pages(world: World, visit):
    await world.app.tasks["add"].submit_many([(n,) for n in range(3)])
    page = await visit("read")
    await page.goto("/dashboard/executions")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    assert await page.locator("tr.chosen").count() == 1
    second = await page.get_attribute("tr.chosen a", "href")
    await page.keyboard.press("k")
    assert await page.get_attribute("tr.chosen a", "href") != second
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.id") == "where"
    # The filter suggests words for its last word.
    await page.keyboard.type("state=waiting ta")
    assert "state=waiting task=add" in await page.evaluate(
        "[...document.querySelector('#where').list.options].map((one) => one.value)"
    )
    await page.fill("#where", "")
    await page.keyboard.press("Escape")
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    assert await page.is_visible("dialog[open]")
    await page.click("dialog button")
    for key, place in (("w", "workers"), ("o", "dashboard"), ("e", "executions")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_url(f"**/{place}")
    await page.keyboard.press("p")
    await page.locator("footer .live", has_text="paused").wait_for()
    await page.keyboard.press("j")
    first = await page.get_attribute("tr.chosen a", "href")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**{first}")
