"""People in a browser: they click, and the database changes; pages change without a reload."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import Context
from server.stage import World
from worker.apps import working


async def test_a_stranger_finds_what_is_stuck_says_why_and_fixes_it(world: World, clock, visit):
    """At most eight clicks, from the sign-in on."""
    client = await world.client()
    run = await world.app.tasks["add"].using(lane="mail").submit(1)
    await client.lanes.pause("mail", reason="provider is down", actor="ada")
    await clock.advance(timedelta(minutes=10))
    page = await visit("admin")
    clicks = 0

    async def click(what: str) -> None:
        nonlocal clicks
        clicks += 1
        await page.click(what)

    stuck = page.locator(".attention", has_text="Stuck lanes")
    assert "the lane is paused" in await stuck.inner_text()
    await click(".attention:has-text('Stuck lanes') >> text=See them")
    await click(f"a[href$='{run.id.uuid}'] >> nth=0")
    assert "paused" in await page.inner_text(".whys")
    await click(".whys a:has-text('lane mail')")
    await page.fill("details:has-text('mail') input[name=reason]", "provider is back")
    await click("details:has-text('mail') >> button:has-text('Resume')")
    await page.wait_for_url("**/lanes")
    assert clicks <= 8
    lane = await client.lanes.get("mail")
    assert (lane.state, lane.reason) == ("active", "provider is back")
    async with working(world.app):
        assert await run.result(timeout=60) == 2


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
