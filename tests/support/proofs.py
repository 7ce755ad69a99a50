"""The slow proofs, in full (`make prove`) or shortened (`make prove ARGS=--short`, as in CI).

    @pytest.mark.slow             --short runs it with a smaller size, which the test requests:
    graphs = sized(1500, short=60)
    @pytest.mark.slow(short=2)    --short runs two of its parametrised cases, different each time
    @pytest.mark.slow(short=2, of="servers")    --short runs two of all cases of that name
    some_of(KINDS, turn)          for tests with the same cases: `make test` runs a third of the
                                  cases in each test, so that together they cover all cases
    drawn("words")                a Random for whatever a test chooses by chance
    few_files(folder, 3)          for --short, three test files of a folder

One seed decides about everything that is chosen by chance. The head of the output shows the seed;
set the variable to repeat a run. CI takes the day of the commit, so that a repeat of CI repeats its
choices.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

SEED = "FLOWFABRIC_PROOF_SEED"

T = TypeVar("T")

_seed = ""


def some_of(values: Iterable[T], turn: int, *, share: int = 3) -> list[Any]:
    """Mark all values as slow except one in `share`. Each of `share` turns keeps other values.

    A tuple has the values of several arguments.
    """
    return [
        value
        if (number + turn) % share == 0
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow(short=1)
        )
        for number, value in enumerate(values)
    ]


def drawn(*what: object) -> Random:
    """Return the random numbers of this run for one purpose."""
    return Random(" ".join(map(str, (_seed, *what))))


def few_files(folder: str, number: int) -> list[str]:
    """Return some test files of a folder of the working copy. Each run chooses other files."""
    root = Path(__file__).parents[2]
    files = sorted(str(path.relative_to(root)) for path in (root / folder).rglob("test_*.py"))
    return drawn("files", folder).sample(files, min(number, len(files)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="run each slow proof in a short form")


def pytest_configure(config: pytest.Config) -> None:
    # All processes of one run must use the same seed: they inherit the variable. A test may remove
    # it later.
    global _seed
    _seed = os.environ.setdefault(SEED, str(secrets.randbits(32)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"{SEED}={_seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that --short does not run."""
    if not config.getoption("short"):
        return
    families: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and "short" in mark.kwargs:
            name = mark.kwargs.get("of", item.nodeid.partition("[")[0])
            families[name, mark.kwargs["short"]].append(item)
    left_out = {
        item
        for (name, number), family in families.items()
        for item in drawn(name).sample(family, len(family) - min(number, len(family)))
    }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def sized(pytestconfig: pytest.Config) -> Callable[..., T]:
    """Return a function: `sized(full, short=...)` is the size of a slow proof in this run."""
    is_short: bool = pytestconfig.getoption("short")

    def size(full: T, *, short: T) -> T:
        return short if is_short else full

    return size
