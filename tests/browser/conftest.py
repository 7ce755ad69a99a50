"""A real browser on a real server: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil

import pytest

from server.conftest import serving, world
from server.stage import World
from worker.apps import app, folder, make_app, plain_environment, start_worker

__all__ = ["app", "folder", "make_app", "plain_environment", "serving", "start_worker", "world"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY = "needs Chromium: apt-get install chromium, and pip install playwright"


@pytest.fixture
async def chromium():
    try:
        from playwright.async_api import async_playwright
    except ModuleNotFoundError:
        async_playwright = None
    if CHROMIUM is None or async_playwright is None:
        if os.environ.get("CI"):
            pytest.fail(WHY)
        pytest.skip(WHY)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


@pytest.fixture
async def visit(world: World, serving: str, chromium):
    """Opens a page as a signed-in visitor. What a page complains about fails the test."""
    complaints: list[str] = []

    async def visit(*scopes: str, javascript: bool = True, **options):
        context = await chromium.new_context(
            base_url=serving, java_script_enabled=javascript, **options
        )
        page = await context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        await page.goto("/dashboard/sign-in")
        await page.fill("#token", await world.token(*scopes))
        await page.click("text=Sign in")
        await page.wait_for_url("**/dashboard")
        return page

    yield visit
    assert complaints == []
