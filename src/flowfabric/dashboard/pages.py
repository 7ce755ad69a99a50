"""Renders the templates. Every value is escaped; no template marks a value as safe."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from flowfabric.core.ids import uuid7
from flowfabric.core.limit import amount_text
from flowfabric.core.states import PublicState
from flowfabric.dashboard.chart import rate_text
from flowfabric.dashboard.timeline import draw_gantt, draw_timeline, times_spent
from flowfabric.drawing.plain import body_text
from flowfabric.drawing.svg import drawing_style
from flowfabric.drawing.text import printable
from flowfabric.drawing.times import exact, precise, short

# Each state has a shape as well as a colour, for readers who cannot tell the colours apart.
SHAPES = {
    PublicState.WAITING: "○",
    PublicState.DELAYED: "◔",
    PublicState.ACTIVE: "▶",
    PublicState.SUSPENDED: "‖",
    PublicState.WAITING_CHILDREN: "◇",
    PublicState.COMPLETED: "✓",
    PublicState.FAILED: "✕",
    PublicState.CANCELLED: "⊘",
    PublicState.EXPIRED: "⊖",
    PublicState.SKIPPED: "↷",
    PublicState.RATE_LIMITED: "≡",
    PublicState.RESUMABLE: "↻",
}
# The states that only flows have.
FLOW_SHAPES = {"open": "○", "running": "▶", "blocked": "◇"}
# The files that pages load, by name, with their media types.
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "drawing.css": "text/css; charset=utf-8",
    "script.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# The pages of the menu: name, path, and the key that opens it after the key g.
MENU = (
    ("Overview", "", "o"),
    ("Executions", "/executions", "e"),
    ("Flows", "/flows", "f"),
    ("Approvals", "/approvals", "a"),
    ("Schedules", "/schedules", "s"),
    ("Lanes", "/lanes", "l"),
    ("Budgets", "/budgets", "b"),
    ("Workers", "/workers", "w"),
    ("Tasks", "/tasks", "t"),
    ("Events", "/events", "v"),
    ("Subscriptions", "/subscriptions", "u"),
)
# A time as the engine writes it into the details of an event.
_ISO = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(\.\d{1,6})?[+-]\d\d:\d\d")
# A longer payload is cut, because nobody reads it on a page.
BODY_SHOWN = 20_000


def render(page: str, *, now: datetime, **facts: Any) -> str:
    """Return a page as HTML. `now` is the time of the database.

    JSON can contain half of a surrogate pair, which cannot be encoded. The page shows such a half
    as an escape sequence.
    """
    html = _environment.get_template(f"{page}.html").render(now=now, **facts)
    return html.encode("utf-8", "backslashreplace").decode()


def read_static(name: str) -> bytes:
    """Return one of the files in STATIC."""
    if name == "drawing.css":
        return drawing_style().encode()
    return files("flowfabric.dashboard").joinpath("static", name).read_bytes()


def _body(body: bytes | None) -> str:
    """Return a payload or a result as text for people. JSON is indented."""
    if body is None:
        return ""
    text = body_text(body)
    try:
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        text = printable(text)
    return text if len(text) <= BODY_SHOWN else text[:BODY_SHOWN] + "\n… (cut)"


def _shown(value: Any) -> str:
    """Return a JSON value as text for people: a string as it is, any other value as JSON."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    return printable(json.dumps(value, ensure_ascii=False))


def _changes(before: Any, after: Any) -> list[tuple[str, str]]:
    """Return what an operator changed.

    Each item is a name whose value differs, and a text with the old and the new value.
    """
    if not isinstance(before, dict) or not isinstance(after, dict):
        before, after = {}, after if isinstance(after, dict) else {"": after}
    before, after = _with_amounts(before), _with_amounts(after)
    found = []
    for name in [*before, *(one for one in after if one not in before)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        text = _listed(new) if old is None else f"{_listed(old)} → {_listed(new)}"
        found.append((printable(name.replace("_", " ")), text))
    return found


def _with_amounts(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of an audit entry, with each limit of a budget as an amount and its unit."""
    names, limits = facts.get("dimensions"), facts.get("hard_limits")
    if not isinstance(names, list) or not isinstance(limits, list) or len(names) != len(limits):
        return facts
    texts = [f"{amount_text(name, most)} {name}" for name, most in zip(names, limits, strict=True)]
    rest = {name: value for name, value in facts.items() if name != "dimensions"}
    return {**rest, "hard_limits": texts}


def _listed(value: Any) -> str:
    """Return a JSON value as text for people. A list is shown without its brackets."""
    return ", ".join(map(_shown, value)) if isinstance(value, list) else _shown(value)


def _fact(value: Any) -> str:
    """Return a detail of an event as text. A time is formatted as on all pages."""
    if isinstance(value, str) and _ISO.fullmatch(value):
        return exact(datetime.fromisoformat(value))
    return _listed(value)


def _quoted(word: str) -> str:
    """Return a word as the filter language needs it: in quotes if it has blanks or quotes."""
    return shlex.quote(word)


def _count(number: int, is_more: bool = False) -> str:
    return f"{number:,}".replace(",", " ") + ("+" if is_more else "")


def _age(since: datetime, now: datetime) -> str:
    return short(max(now - since, timedelta()))


def _near(moment: datetime, now: datetime) -> str:
    """Return how far a moment is from now. The page shows the exact time on hover."""
    return f"in {short(moment - now)}" if moment > now else f"{short(now - moment)} ago"


_environment = Environment(
    loader=PackageLoader("flowfabric.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "body": _body,
    "shown": _shown,
    "changes": _changes,
    "fact": _fact,
    "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    "quoted": _quoted,
    "exact": exact,
    "near": _near,
    "tail": lambda id: "…" + str(id.uuid)[-12:],
    "age": _age,
    "short": short,
    "precise": precise,
    "number": _count,
    "printable": lambda value: printable(str(value)),
    "printable_lines": lambda value: "\n".join(map(printable, str(value).split("\n"))),
    "word": lambda value: str(value).replace("_", " "),
    "minute": lambda moment: f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}",
    "rate": rate_text,
    "iso": lambda moment: moment.isoformat(),
}
_environment.globals |= {
    "shapes": {str(state): shape for state, shape in SHAPES.items()} | FLOW_SHAPES,
    "states": [str(state) for state in PublicState],
    "draw_gantt": draw_gantt,
    "draw_timeline": draw_timeline,
    "times_spent": times_spent,
    "menu": MENU,
    "once": uuid7,
}
