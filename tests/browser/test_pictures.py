"""Every page in a real browser: it complains about nothing, and nothing is cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.browsing import HOSTILE
from server.traffic import make_traffic, pages_of
from support.proofs import drawn

# Where pictures of all pages go, if somebody wants to look at them.
PICTURES = os.environ.get("DASHBOARD_PICTURES")


# Controls that a screen reader could not name.
NAMELESS = """
    [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a")]
      .filter((one) => !(one.labels && one.labels.length) && !one.ariaLabel
                       && !one.textContent.trim())
      .map((one) => one.outerHTML)
"""
NARROW, WIDE = (360, "dark"), (1440, "light")
SLOW = pytest.mark.slow(short=2)


@pytest.mark.parametrize(
    ("hostile", "screens", "each"),
    [
        # A quarter of the pages, every day another one.
        pytest.param(HOSTILE, [WIDE], 4, id="hostile, some"),
        pytest.param(HOSTILE, [WIDE], 1, id="hostile", marks=SLOW),
        pytest.param("", [NARROW], 1, id="narrow", marks=SLOW),
        pytest.param("", [WIDE, (3840, "dark")], 1, id="wide", marks=SLOW),
        pytest.param(HOSTILE, [NARROW], 1, id="hostile, narrow", marks=SLOW),
    ],
)
async def test_every_page_fits_its_screen_and_names_its_controls(
    world, clock, visit, hostile, screens, each
):
    left = await make_traffic(world, clock, hostile=hostile)
    pages = list(pages_of(left).items())[drawn("pages").randrange(each) :: each]
    for width, scheme in screens:
        page = await visit("admin", viewport={"width": width, "height": 900}, color_scheme=scheme)
        for name, path in pages:
            await page.goto(f"/dashboard{path}")
            # Wide tables scroll inside themselves, never the page.
            across = await page.evaluate("document.documentElement.scrollWidth")
            assert across <= width, (name, width, across)
            assert await page.evaluate(NAMELESS) == [], name
            if PICTURES and not hostile:
                file = Path(PICTURES) / f"{name}-{width}-{scheme}.png"
                await page.screenshot(path=file, full_page=True)
        await page.goto(f"/w/{left.tokens['ops']}")
        if PICTURES and not hostile:
            file = Path(PICTURES) / f"asked-public-{width}-{scheme}.png"
            await page.screenshot(path=file, full_page=True)
        await page.context.close()
