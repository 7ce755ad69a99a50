"""The filter language of `--where`, and the flags of `ls` that mean the same.

    state=failed,cancelled lane=mail task=mail.send tag.team.name=x age>2h

Conditions are separated by blanks, and all must hold. A comma between values means "or". All
commands that select executions use this module.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    MAX_KEY_BYTES,
    ExecutionFilter,
    check_lane,
    check_name,
    check_tags,
    check_text,
)
from flowfabric.core.ids import parse_id
from flowfabric.core.states import PublicState
from flowfabric.core.times import When, past, when
from flowfabric.drawing.times import exact, precise

LANGUAGE = (
    "Choose executions by conditions, separated by blanks; all must hold: state=failed,cancelled "
    "lane=mail task=mail.send,shop.* tag.team.name=x worker=INSTANCE key=KEY parent=ID "
    "error=TimeoutError held=yes crash_looping=yes age>2h age<7d created>2026-11-01 "
    "created<2026-11-02 ended<30m. A comma means or; in a task, * means any text. A duration (30s, "
    "10m, 2h, 7d) is a time ago: age>2h means older than two hours, ended>30m means ended more "
    "than half an hour ago, ended<30m means ended within the last half hour. An ISO time is a "
    "moment: ended>2026-11-01 means ended after this moment. Quote a value that has blanks."
)

_EQUAL = ("state", "lane", "task", "worker", "key", "parent", "error", "held", "crash_looping")
KEYS = (*_EQUAL[:3], "tag.", *_EQUAL[3:], "age", "created", "ended")
_YES = {"yes": True, "true": True, "no": False, "false": False}
_CONDITION = re.compile(
    r"(?P<key>[A-Za-z_][\w.]*)\s*(?P<sign><=|>=|!=|==|=|<|>)(?P<value>.*)", re.S
)
# The words that other systems use for our states.
_SYNONYMS = {
    "running": "active",
    "leased": "active",
    "claimed": "active",
    "pending": "waiting",
    "queued": "waiting",
    "ready": "waiting",
    "eligible": "waiting",
    "scheduled": "delayed",
    "retrying": "delayed",
    "backoff": "delayed",
    "done": "completed",
    "succeeded": "completed",
    "success": "completed",
    "error": "failed",
    "errored": "failed",
    "aborted": "cancelled",
    "timeout": "expired",
    "timed_out": "expired",
    "blocked": "waiting",
    "paused": "suspended",
}


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions on executions. Ages (`age>2h`) count back from the time given to `resolved`."""

    states: tuple[PublicState, ...] | None = None
    lanes: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    worker: str | None = None
    key: str | None = None
    parent: str | None = None
    error: str | None = None
    held: bool | None = None
    crash_looping: bool | None = None
    created_after: When | None = None
    created_before: When | None = None
    ended_after: When | None = None
    ended_before: When | None = None
    # Whether the user gave the states. If not, they are the states that an action allows.
    is_state_meant: bool = True

    @property
    def is_everything(self) -> bool:
        return self == Where()

    def resolved(self, now: datetime) -> ExecutionFilter:
        """Convert the conditions to a filter of the engine. Ages count back from `now`."""
        return ExecutionFilter(
            states=self.states,
            lanes=self.lanes,
            tasks=self.tasks,
            tags=self.tags or None,
            created_after=_past(self.created_after, now),
            created_before=_past(self.created_before, now),
            ended_after=_past(self.ended_after, now),
            ended_before=_past(self.ended_before, now),
            worker_instance_id=self.worker,
            key=self.key,
            parent=self.parent,
            error=self.error,
            is_held=self.held,
            is_crash_loop=self.crash_looping,
        )

    def __str__(self) -> str:
        """Return the conditions as text, so that the user can check how they were understood."""
        parts = [
            f"{key}={','.join(values)}"
            for key, values in (("state", self.states), ("lane", self.lanes), ("task", self.tasks))
            if values
        ]
        parts += [f"tag.{key}={value}" for key, value in self.tags.items()]
        for name in ("worker", "key", "parent", "error"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name}={value}")
        for name in ("held", "crash_looping"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name}={'yes' if value else 'no'}")
        for words, moment in (
            ("created since", self.created_after),
            ("created before", self.created_before),
            ("ended since", self.ended_after),
            ("ended before", self.ended_before),
        ):
            if moment is not None:
                parts.append(f"{words} {_moment_text(moment)}")
        return "; ".join(parts) or "everything"


def parse(conditions: str | Sequence[str]) -> Where:
    """Parse conditions. If a condition is wrong, raise InvalidInput."""
    texts = [conditions] if isinstance(conditions, str) else conditions
    where = Where()
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise _wrong(f"{text!r}: {str(error).lower()}") from error
        for word in words:
            where = _with(where, word)
    return where


def from_flags(
    where: Sequence[str] | None,
    *,
    states: Sequence[str] | None = None,
    lanes: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    since: str | None = None,
    key: str | None = None,
    parent: str | None = None,
    error: str | None = None,
    held: bool = False,
    crash_looping: bool = False,
) -> Where:
    """Combine conditions and flags. Refuse a property that is given in both."""
    combined = parse(where or [])
    if states:
        _once("--state", combined.states)
        words = [word for text in states for word in text.split(",")]
        combined = replace(combined, states=_states(words))
    if lanes:
        _once("--lane", combined.lanes)
        combined = replace(combined, lanes=_lanes(lanes))
    if tasks:
        _once("--task", combined.tasks)
        combined = replace(combined, tasks=_tasks(tasks))
    for text in tags or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidInput(field="tag", problem=f"{text!r} is not of the form team.name=value")
        combined = replace(combined, tags=_tagged(combined.tags, name, value))
    for flag, given in (
        ("key", key),
        ("parent", parent),
        ("error", error),
        ("held", "yes" if held else None),
        ("crash_looping", "yes" if crash_looping else None),
    ):
        if given is not None:
            combined = _equal(combined, flag, given)
    if since is not None:
        _once("--since", combined.created_after)
        combined = replace(combined, created_after=when(since, "since"))
    return combined


def _with(where: Where, word: str) -> Where:
    match = _CONDITION.fullmatch(word)
    if match is None:
        raise _wrong(f"{word!r} is not a condition; write state=failed or age>2h")
    key, sign, value = match["key"].lower(), match["sign"], match["value"]
    if key.startswith("tag.") or key in _EQUAL:
        if sign != "=":
            raise _wrong(f"{word!r}: only {key}=... is allowed")
        if not value and not key.startswith("tag."):
            raise _wrong(f"{word!r}: the value is missing")
        return _equal(where, match["key"], value)
    if key not in ("age", "created", "ended"):
        raise _wrong(
            f"{match['key']!r} is not a known filter{_near_key(key)}; use {', '.join(_named())}"
        )
    if sign not in ("<", ">"):
        raise _wrong(f"{word!r}: only {key}< and {key}> are allowed")
    moment = when(value, key)
    if key == "age":
        if isinstance(moment, datetime):
            raise InvalidInput(field="age", problem=f"{value!r} must look like 30s, 10m, 2h or 7d")
        key = "created"
    # A duration counts back from now: age>2h means earlier than 2 hours ago. For a moment, > means
    # later.
    is_after = (sign == ">") == isinstance(moment, datetime)
    bound = f"{key}_{'after' if is_after else 'before'}"
    _once(bound.replace("_", " "), getattr(where, bound))
    return _bounded(where, bound, moment)


def _bounded(where: Where, bound: str, moment: When) -> Where:
    changes: dict[str, Any] = {bound: moment}
    return replace(where, **changes)


def _equal(where: Where, key: str, value: str) -> Where:
    if key.lower() in ("worker", "key", "parent", "error"):
        return _with_one(where, key.lower(), value)
    values = value.split(",")
    if any(not part for part in values) and not key.lower().startswith("tag."):
        raise _wrong(f"{key}={value}: a value before or after a comma is missing")
    match key.lower():
        case "state":
            _once(key, where.states)
            return replace(where, states=_states(values))
        case "lane":
            _once(key, where.lanes)
            return replace(where, lanes=_lanes(values))
        case "task":
            _once(key, where.tasks)
            return replace(where, tasks=_tasks(values))
        case "held" | "crash_looping" as name:
            _once(key, getattr(where, name))
            if value.lower() not in _YES:
                raise _wrong(f"{key}={value}: use yes or no")
            chosen: dict[str, Any] = {name: _YES[value.lower()]}
            return replace(where, **chosen)
    return replace(where, tags=_tagged(where.tags, key[len("tag.") :], value))


def _with_one(where: Where, key: str, value: str) -> Where:
    """Add a condition that takes one value. Commas are part of the value."""
    _once(key, getattr(where, key))
    if key == "parent":
        parse_id(value)
    elif key == "key":
        check_text(key, value, MAX_KEY_BYTES)
    else:
        check_name(key, value)
    chosen: dict[str, Any] = {key: value}
    return replace(where, **chosen)


def _states(words: Iterable[str]) -> tuple[PublicState, ...]:
    return tuple(dict.fromkeys(_state(word) for word in words))


def _state(word: str) -> PublicState:
    try:
        return PublicState(word.lower())
    except ValueError as error:
        near = _near(word.lower(), [*PublicState, *_SYNONYMS])
        near = near and _SYNONYMS.get(near, near)
        hint = f" (did you mean {near}?)" if near else ""
        if word.lower() == "held":
            hint = " (use --held, or held=yes in --where)"
        raise InvalidInput(
            field="state",
            problem=f"{word!r} is not a state{hint}; use one of {', '.join(PublicState)}",
        ) from error


def _lanes(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        check_lane(name)
    return tuple(names)


def _tasks(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        check_name("task", name)
    return tuple(names)


def _tagged(tags: dict[str, str], key: str, value: str) -> dict[str, str]:
    check_tags({key: value})
    _once(f"tag.{key}", tags.get(key))
    return {**tags, key: value}


def _once(key: str, present: object) -> None:
    if present is not None:
        raise InvalidInput(field=key, problem="is given twice; separate alternatives with a comma")


def _named() -> list[str]:
    return [f"{key}team.name" if key == "tag." else key for key in KEYS]


def _near_key(key: str) -> str:
    if key in ("tag", "tags"):
        return " (did you mean tag.team.name?)"
    near = _near(key, [name.rstrip(".") for name in KEYS])
    return f" (did you mean {near}?)" if near else ""


def _near(word: str, known: Sequence[str]) -> str | None:
    matches = get_close_matches(word, known, n=1)
    return matches[0] if matches else None


def _wrong(problem: str) -> InvalidInput:
    return InvalidInput(field="--where", problem=problem)


def _past(moment: When | None, now: datetime) -> datetime | None:
    return None if moment is None else past(moment, now)


def _moment_text(moment: When) -> str:
    return exact(moment) if isinstance(moment, datetime) else f"{precise(moment)} ago"
