"""Draw the pictures in docs/guide/pictures: typical flows, drawn as by `flow graph --svg`.

python tools/draw_flow_pictures.py            write the pictures
python tools/draw_flow_pictures.py --check    list outdated pictures, and exit with 1
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing.picture import Box, Joint, Line, Picture
from flowfabric.drawing.svg import as_svg

PICTURES = Path(__file__).parents[1] / "docs" / "guide" / "pictures"

_WORDS = {
    "done": PublicState.COMPLETED,
    "bad": PublicState.FAILED,
    "run": PublicState.ACTIVE,
    "line": PublicState.WAITING,
    "wait": PublicState.WAITING_CHILDREN,
    "gone": PublicState.CANCELLED,
    "skip": PublicState.SKIPPED,
    "late": PublicState.DELAYED,
}


class Sketch:
    """A flow to draw, with nodes given by name.

    The state of a node decides how its edges are drawn.
    """

    def __init__(self, title: str, state: str) -> None:
        self.title, self.state = title, state
        self.boxes: dict[str, Box] = {}
        self.lines: list[tuple[str, str, int]] = []
        self.groups: list[tuple[str, int, GroupPolicy, int]] = []

    def add(self, name: str, task: str, state: str, *after: str) -> None:
        self.boxes[name] = Box(name=name, task=task, state=_WORDS[state])
        self.lines += ((up, name, 0) for up in after)

    def join(
        self, name: str, ups: Iterable[str], policy: GroupPolicy, k: int = 1, group: int = 0
    ) -> None:
        self.lines += ((up, name, group) for up in ups)
        self.groups.append((name, group, policy, k))

    def picture(self) -> Picture:
        place = {name: at for at, name in enumerate(self.boxes)}
        lines = [
            Line(place[up], place[down], group, _resolution(self.boxes[up].state))
            for up, down, group in self.lines
        ]
        joints = []
        for name, group, policy, k in self.groups:
            ends = [
                _resolution(self.boxes[up].state)
                for up, down, its in self.lines
                if (down, its) == (name, group)
            ]
            n = len(ends)
            needed = {GroupPolicy.ALL_OF: n, GroupPolicy.ANY_OF: 1}.get(policy, k)
            joints.append(Joint(place[name], group, policy, needed, n, _decided(ends, needed)))
        return Picture(
            title=self.title,
            state=self.state,
            boxes=list(self.boxes.values()),
            lines=lines,
            joints=joints,
        )


def _resolution(state: PublicState | None) -> Resolution:
    if state is PublicState.COMPLETED:
        return Resolution.SATISFIED
    is_over = state is not None and state.is_terminal
    return Resolution.IMPOSSIBLE if is_over else Resolution.UNSATISFIED


def _decided(ends: list[Resolution], needed: int) -> GroupState:
    if ends.count(Resolution.SATISFIED) >= needed:
        return GroupState.SATISFIED
    if ends.count(Resolution.IMPOSSIBLE) > len(ends) - needed:
        return GroupState.IMPOSSIBLE
    return GroupState.PENDING


def chain() -> Picture:
    sketch = Sketch("order 4711", "running")
    sketch.add("validate", "shop.validate", "done")
    sketch.add("reserve", "shop.reserve_stock", "done", "validate")
    sketch.add("charge", "payments.charge_card", "run", "reserve")
    sketch.add("ship", "shop.ship", "wait", "charge")
    sketch.add("thank", "mail.send", "wait", "ship")
    return sketch.picture()


def diamond() -> Picture:
    sketch = Sketch("monthly invoice", "running")
    sketch.add("load orders", "billing.load", "done")
    sketch.add("price", "billing.price", "done", "load orders")
    sketch.add("tax", "billing.tax", "done", "load orders")
    sketch.add("discounts", "billing.discounts", "run", "load orders")
    sketch.add("total", "billing.total", "wait", "price", "tax", "discounts")
    sketch.add("send", "mail.send", "wait", "total")
    return sketch.picture()


def fan_out() -> Picture:
    sketch = _gallery(120, lambda at: "done" if at < 96 else "run" if at < 104 else "line")
    return sketch.picture()


def fan_out_unfolded() -> Picture:
    return _gallery(8, lambda at: "done" if at < 5 else "run" if at < 7 else "line").picture()


def _gallery(width: int, state: Callable[[int], str]) -> Sketch:
    sketch = Sketch("gallery", "running")
    sketch.add("list photos", "photos.list", "done")
    names = [f"resize {at + 1}" for at in range(width)]
    for at, name in enumerate(names):
        sketch.add(name, "photos.resize", state(at), "list photos")
    sketch.add("album", "photos.album", "wait", *names)
    return sketch


def quorum_race() -> Picture:
    sketch = Sketch("quotes for a parcel", "running")
    sketch.add("measure", "parcels.measure", "done")
    states = {"north": "done", "river": "gone", "swift": "done", "anchor": "gone", "pony": "bad"}
    for name, state in states.items():
        sketch.add(name, f"carriers.{name}", state, "measure")
    sketch.add("choose", "parcels.choose", "done")
    sketch.join("choose", states, GroupPolicy.QUORUM, 2)
    sketch.add("pay by card", "pay.card", "run", "choose")
    sketch.add("pay by transfer", "pay.transfer", "run", "choose")
    sketch.add("book", "parcels.book", "wait")
    sketch.join("book", ["pay by card", "pay by transfer"], GroupPolicy.ANY_OF)
    return sketch.picture()


def skipped() -> Picture:
    sketch = Sketch("nightly report", "failed")
    sketch.add("start", "report.start", "done")
    sketch.add("sales", "report.extract", "done", "start")
    sketch.add("stock", "report.extract", "bad", "start")
    sketch.add("visits", "report.extract", "done", "start")
    sketch.add("clean sales", "report.clean", "done", "sales")
    sketch.add("clean stock", "report.clean", "skip", "stock")
    sketch.add("clean visits", "report.clean", "done", "visits")
    sketch.add("merge", "report.merge", "skip", "clean sales", "clean stock", "clean visits")
    sketch.add("charts", "report.charts", "skip", "merge")
    sketch.add("tables", "report.tables", "skip", "merge")
    sketch.add("publish", "report.publish", "skip", "charts", "tables")
    sketch.add("visits chart", "report.charts", "done", "clean visits")
    return sketch.picture()


def media() -> Picture:
    sketch = Sketch("media-0192", "running")
    sketch.add("fetch", "media.fetch", "done")
    sketch.add("probe", "media.probe", "done", "fetch")
    sketch.add("split", "media.split", "done", "probe")
    chunks = [f"encode {at + 1:02}" for at in range(24)]
    for at, name in enumerate(chunks):
        sketch.add(
            name, "media.encode", "done" if at < 14 else "run" if at < 18 else "line", "split"
        )
    sketch.add("stitch", "media.stitch", "wait", *chunks)
    sketch.add("loudness", "media.loudness", "done", "probe")
    sketch.add("audio", "media.audio", "run", "loudness")
    sketch.add("captions A", "speech.fast", "done", "probe")
    sketch.add("captions B", "speech.exact", "gone", "probe")
    sketch.add("subtitles", "media.subtitles", "run")
    sketch.join("subtitles", ["captions A", "captions B"], GroupPolicy.ANY_OF)
    sketch.add("poster", "media.poster", "late", "probe")
    sketch.add("package", "media.package", "wait", "stitch", "audio", "subtitles")
    sketch.add("publish", "media.publish", "wait")
    sketch.join("publish", ["package", "poster"], GroupPolicy.ALL_OF)
    sketch.add("announce", "mail.announce", "wait", "publish")
    sketch.add("purge", "cdn.purge", "wait", "publish")
    return sketch.picture()


def two_groups() -> Picture:
    sketch = Sketch("loan decision", "blocked")
    sketch.add("application", "loans.read", "done")
    bureaus = ["bureau A", "bureau B", "bureau C"]
    for name, state in zip(bureaus, ("done", "run", "run"), strict=True):
        sketch.add(name, "scores.ask", state, "application")
    sketch.add("income", "loans.income", "done", "application")
    sketch.add("identity", "loans.identity", "done", "application")
    sketch.add("clerk", "people.review", "late", "application")
    sketch.add("robot", "models.review", "bad", "application")
    sketch.add("decide", "loans.decide", "wait")
    sketch.join("decide", bureaus, GroupPolicy.QUORUM, 2, 0)
    sketch.join("decide", ["income", "identity"], GroupPolicy.ALL_OF, group=1)
    sketch.join("decide", ["clerk", "robot"], GroupPolicy.ANY_OF, group=2)
    sketch.add("answer", "mail.send", "wait", "decide")
    return sketch.picture()


def random_graph(size: int = 200, seed: int = 7) -> Picture:
    """Make a random graph: each node waits for up to three earlier nodes, and some fail."""
    dice = random.Random(seed)
    sketch = Sketch(f"{size} nodes at random", "running")
    tasks = ("load", "clean", "join", "score", "store")
    names: list[str] = []
    for at in range(size):
        near = names[-30:]
        ups: list[str] = []
        for _ in range(1 + int(dice.random() ** 2 * 3) if at > 5 else 0):
            up = near[int(dice.random() * len(near))]
            if up not in ups:
                ups.append(up)
        states = [sketch.boxes[up].state for up in ups]
        if any(state in (PublicState.FAILED, PublicState.SKIPPED) for state in states):
            state = "skip"
        elif all(state is PublicState.COMPLETED for state in states) and at < size * 0.8:
            luck = dice.random()
            state = "done" if luck < 0.93 else "run" if luck < 0.98 else "bad"
        else:
            state = "wait" if ups else "line"
        task = tasks[int(dice.random() * len(tasks))]
        name = f"{task} {at}"
        sketch.add(name, f"lab.{task}", state, *ups)
        names.append(name)
    return sketch.picture()


SHAPES: dict[str, tuple[Callable[[], Picture], bool]] = {
    "chain": (chain, True),
    "diamond": (diamond, True),
    "fan-out": (fan_out, True),
    "fan-out-unfolded": (fan_out_unfolded, False),
    "quorum-race": (quorum_race, True),
    "skipped-cascade": (skipped, True),
    "media-pipeline": (media, True),
    "two-groups": (two_groups, True),
    "random-200": (random_graph, True),
}


def drawn() -> dict[str, str]:
    """Return every picture by its file name."""
    return {
        f"{name}.svg": as_svg(shape(), is_folded=is_folded)
        for name, (shape, is_folded) in SHAPES.items()
    }


def outdated(wanted: dict[str, str]) -> list[str]:
    """Return a line for every picture that is out of date or no longer drawn."""
    found = []
    for name, text in wanted.items():
        file = PICTURES / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            found.append(f"docs/guide/pictures/{name} is out of date")
    found += (
        f"docs/guide/pictures/{file.name} is no longer drawn"
        for file in sorted(PICTURES.glob("*.svg"))
        if file.name not in wanted
    )
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    wanted = drawn()
    if arguments == ["--check"]:
        for problem in (problems := outdated(wanted)):
            print(problem)
        return 1 if problems else 0
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (PICTURES / name).write_text(text, encoding="utf-8")
        print(f"docs/guide/pictures/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
