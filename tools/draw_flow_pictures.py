"""Draws the pictures of docs/guide/pictures: flows of typical shapes, as `flow graph --svg` does.

python tools/draw_flow_pictures.py            write the pictures
python tools/draw_flow_pictures.py --check    say which are out of date, and exit with 1
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing import Box, Joint, Line, Picture, as_svg

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
    """A picture by names. How far its lines are follows from the states of its boxes."""

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
    one = Sketch("order 4711", "running")
    one.add("validate", "shop.validate", "done")
    one.add("reserve", "shop.reserve_stock", "done", "validate")
    one.add("charge", "payments.charge_card", "run", "reserve")
    one.add("ship", "shop.ship", "wait", "charge")
    one.add("thank", "mail.send", "wait", "ship")
    return one.picture()


def diamond() -> Picture:
    one = Sketch("monthly invoice", "running")
    one.add("load orders", "billing.load", "done")
    one.add("price", "billing.price", "done", "load orders")
    one.add("tax", "billing.tax", "done", "load orders")
    one.add("discounts", "billing.discounts", "run", "load orders")
    one.add("total", "billing.total", "wait", "price", "tax", "discounts")
    one.add("send", "mail.send", "wait", "total")
    return one.picture()


def fan_out() -> Picture:
    one = _gallery(120, lambda at: "done" if at < 96 else "run" if at < 104 else "line")
    return one.picture()


def fan_out_unfolded() -> Picture:
    return _gallery(8, lambda at: "done" if at < 5 else "run" if at < 7 else "line").picture()


def _gallery(width: int, state: Callable[[int], str]) -> Sketch:
    one = Sketch("gallery", "running")
    one.add("list photos", "photos.list", "done")
    names = [f"resize {at + 1}" for at in range(width)]
    for at, name in enumerate(names):
        one.add(name, "photos.resize", state(at), "list photos")
    one.add("album", "photos.album", "wait", *names)
    return one


def quorum_race() -> Picture:
    one = Sketch("quotes for a parcel", "running")
    one.add("measure", "parcels.measure", "done")
    states = {"north": "done", "river": "gone", "swift": "done", "anchor": "gone", "pony": "bad"}
    for name, state in states.items():
        one.add(name, f"carriers.{name}", state, "measure")
    one.add("choose", "parcels.choose", "done")
    one.join("choose", states, GroupPolicy.QUORUM, 2)
    one.add("pay by card", "pay.card", "run", "choose")
    one.add("pay by transfer", "pay.transfer", "run", "choose")
    one.add("book", "parcels.book", "wait")
    one.join("book", ["pay by card", "pay by transfer"], GroupPolicy.ANY_OF)
    return one.picture()


def skipped() -> Picture:
    one = Sketch("nightly report", "failed")
    one.add("start", "report.start", "done")
    one.add("sales", "report.extract", "done", "start")
    one.add("stock", "report.extract", "bad", "start")
    one.add("visits", "report.extract", "done", "start")
    one.add("clean sales", "report.clean", "done", "sales")
    one.add("clean stock", "report.clean", "skip", "stock")
    one.add("clean visits", "report.clean", "done", "visits")
    one.add("merge", "report.merge", "skip", "clean sales", "clean stock", "clean visits")
    one.add("charts", "report.charts", "skip", "merge")
    one.add("tables", "report.tables", "skip", "merge")
    one.add("publish", "report.publish", "skip", "charts", "tables")
    one.add("visits chart", "report.charts", "done", "clean visits")
    return one.picture()


def media() -> Picture:
    one = Sketch("media-0192", "running")
    one.add("fetch", "media.fetch", "done")
    one.add("probe", "media.probe", "done", "fetch")
    one.add("split", "media.split", "done", "probe")
    chunks = [f"encode {at + 1:02}" for at in range(24)]
    for at, name in enumerate(chunks):
        one.add(name, "media.encode", "done" if at < 14 else "run" if at < 18 else "line", "split")
    one.add("stitch", "media.stitch", "wait", *chunks)
    one.add("loudness", "media.loudness", "done", "probe")
    one.add("audio", "media.audio", "run", "loudness")
    one.add("captions A", "speech.fast", "done", "probe")
    one.add("captions B", "speech.exact", "gone", "probe")
    one.add("subtitles", "media.subtitles", "run")
    one.join("subtitles", ["captions A", "captions B"], GroupPolicy.ANY_OF)
    one.add("poster", "media.poster", "late", "probe")
    one.add("package", "media.package", "wait", "stitch", "audio", "subtitles")
    one.add("publish", "media.publish", "wait")
    one.join("publish", ["package", "poster"], GroupPolicy.ALL_OF)
    one.add("announce", "mail.announce", "wait", "publish")
    one.add("purge", "cdn.purge", "wait", "publish")
    return one.picture()


def two_groups() -> Picture:
    one = Sketch("loan decision", "blocked")
    one.add("application", "loans.read", "done")
    bureaus = ["bureau A", "bureau B", "bureau C"]
    for name, state in zip(bureaus, ("done", "run", "run"), strict=True):
        one.add(name, "scores.ask", state, "application")
    one.add("income", "loans.income", "done", "application")
    one.add("identity", "loans.identity", "done", "application")
    one.add("clerk", "people.review", "late", "application")
    one.add("robot", "models.review", "bad", "application")
    one.add("decide", "loans.decide", "wait")
    one.join("decide", bureaus, GroupPolicy.QUORUM, 2, 0)
    one.join("decide", ["income", "identity"], GroupPolicy.ALL_OF, group=1)
    one.join("decide", ["clerk", "robot"], GroupPolicy.ANY_OF, group=2)
    one.add("answer", "mail.send", "wait", "decide")
    return one.picture()


def random_graph(size: int = 200, seed: int = 7) -> Picture:
    """Nodes that wait for up to three nearby earlier ones, run until some have failed."""
    dice = random.Random(seed)
    one = Sketch(f"{size} nodes at random", "running")
    tasks = ("load", "clean", "join", "score", "store")
    names: list[str] = []
    for at in range(size):
        near = names[-30:]
        ups: list[str] = []
        for _ in range(1 + int(dice.random() ** 2 * 3) if at > 5 else 0):
            up = near[int(dice.random() * len(near))]
            if up not in ups:
                ups.append(up)
        states = [one.boxes[up].state for up in ups]
        if any(state in (PublicState.FAILED, PublicState.SKIPPED) for state in states):
            state = "skip"
        elif all(state is PublicState.COMPLETED for state in states) and at < size * 0.8:
            luck = dice.random()
            state = "done" if luck < 0.93 else "run" if luck < 0.98 else "bad"
        else:
            state = "wait" if ups else "line"
        task = tasks[int(dice.random() * len(tasks))]
        name = f"{task} {at}"
        one.add(name, f"lab.{task}", state, *ups)
        names.append(name)
    return one.picture()


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
    """Every picture by its file name."""
    return {
        f"{name}.svg": as_svg(shape(), is_folded=is_folded)
        for name, (shape, is_folded) in SHAPES.items()
    }


def outdated(wanted: dict[str, str]) -> list[str]:
    """A line for every picture that is not as it would be drawn now, or not drawn any more."""
    found = []
    for name, text in wanted.items():
        file = PICTURES / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            found.append(f"docs/guide/pictures/{name} is out of date")
    found += (
        f"docs/guide/pictures/{file.name} is not drawn any more"
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
