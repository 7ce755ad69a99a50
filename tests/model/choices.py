"""How the arguments of a step are chosen, and the register of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from .bench import MINUTE, NAMESPACE, NOTHING, SECOND, STRANGER

T = TypeVar("T")

# How a group may be judged: policy, k, on_satisfied
RULES: tuple[tuple[str, int | None, str | None], ...] = (
    ("all_of", None, None),
    ("all_of", None, None),
    ("any_of", None, "cancel_remaining"),
    ("any_of", None, "let_run"),
    ("quorum", 1, "cancel_remaining"),
    ("quorum", 2, "cancel_remaining"),
    ("quorum", 2, "let_run"),
)

Chooser = Callable[[Random], Any]


def one_of(values: Sequence[Any]) -> Chooser:
    return lambda dice: dice.choice(values)


def between(least: int, most: int) -> Chooser:
    return lambda dice: dice.randint(least, most)


def several(chooser: Chooser, most: int) -> Chooser:
    return lambda dice: [chooser(dice) for _ in range(dice.randint(1, most))]


PICK = between(0, 63)
AGAIN = one_of([False, False, False, False, True])
WHO = one_of([NAMESPACE] * 14 + [None, None, STRANGER])
FENCES = one_of(
    ["current"] * 20
    + ["former", "former", "first", "first"]
    + ["wrong_epoch", "wrong_attempt", "wrong_lease", "of_another", "no_epoch", "no_lease", "none"]
)
TTL = one_of([30 * SECOND] * 8 + [MINUTE, 5 * MINUTE, 10 * SECOND, 10 * SECOND, NOTHING])
ACTOR = one_of([None, "ann"])
STEPS_OF_A_HANDLER = ["load", "load", "save", "x", "y", "nap", "time"]
VERSION = one_of(["any", "any", "any", "seen", "seen", "older"])
GRANT_TTL = one_of([10 * SECOND] * 5 + [MINUTE, 2 * MINUTE])
OPERATIONS: dict[str, dict[str, Chooser]] = {}
WEIGHTED: list[str] = []


def operation(weight: int, **arguments: Chooser) -> Callable[[T], T]:
    """A method of the machine that is one step, chosen as often as its weight says."""

    def register(method: T) -> T:
        name: str = method.__name__  # type: ignore[attr-defined]
        OPERATIONS[name] = arguments
        WEIGHTED.extend([name] * weight)
        return method

    return register
