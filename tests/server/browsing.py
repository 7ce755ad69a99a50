"""A visitor of the dashboard without a browser: the cookie of the sign-in, and parsed pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from server.stage import Caller, World

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
OWN = {"origin": "http://127.0.0.1:9090"}


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        # Where each form leads that has a button without a place of its own.
        self._form: str | None = None
        self._acts: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "form":
            self._form = str(dict(attrs)["action"]) if dict(attrs).get("method") == "post" else None
        elif tag == "button" and self._form is not None:
            self._acts.add(str(dict(attrs).get("formaction") or self._form))
        self.text += " " if tag in ("dd", "td", "th", "li", "label") else ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)

    @property
    def words(self) -> str:
        """The text with single blanks."""
        return re.sub(r"\s+", " ", self.text)

    @property
    def acts(self) -> set[str]:
        """Where the buttons of the page lead, without the sign-out."""
        return {one.removeprefix("/dashboard") for one in self._acts} - {"/sign-out"}


class Visitor(Caller):
    """A person who has signed in."""

    async def look(self, path: str, status: int = 200) -> Page:
        """Return a page of the dashboard, which must obey the rules of all pages."""
        answer = await self.get(f"/dashboard{path}")
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        page = Page(answer.text)
        check_policy(page, answer.headers["content-security-policy"], path)
        return page

    async def act(self, path: str, status: int = 303, **form: str) -> str:
        """Send a form as a page of the dashboard does; return where the answer leads."""
        answer = await self.post(f"/dashboard{path}", data=form, headers=OWN)
        assert answer.status_code == status, (path, answer.status_code, Page(answer.text).words)
        return answer.headers.get("location", "") if status == 303 else Page(answer.text).words


def check_policy(page: Page, policy: str, path: str) -> None:
    """The policy forbids inline script and style, so no page may need one."""
    assert "script-src 'self'" in policy, path
    assert "unsafe" not in policy, path
    assert [one for one in page.all("script") if not one.get("src")] == [], path
    assert list(page.all("style")) == [], path
    assert not any("style" in one for _, one in page.tags), path
    assert not any(name.startswith("on") for _, one in page.tags for name in one), path


async def sign_in(world: World, *scopes: str) -> Visitor:
    visitor = Visitor(world.served)
    world._callers.append(visitor)
    token = await world.token(*scopes)
    answer = await visitor.post("/dashboard/sign-in", data={"token": token}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/dashboard"))
    return visitor
