"""Runs many cases of one rule as one test, because a report line for each case takes too long.

@for_each("file", FILES)
def test_a_rule(file): ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def for_each(argument: str, cases: Iterable[Any], *, name: Callable[[Any], str] = str) -> Any:
    """Call a test for every case. At the end, fail with the names and reasons of all failed cases.

    The checks must not leave anything behind, because the cases share their fixtures.
    """
    listed = list(cases)
    assert listed, "no cases"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**fixtures: Any) -> None:
                problems = []
                for case in listed:
                    try:
                        await test(**{argument: case}, **fixtures)
                    except Exception as problem:
                        problems.append((case, problem))
                _tell(problems)
        else:

            @functools.wraps(test)
            def run(**fixtures: Any) -> None:
                problems = []
                for case in listed:
                    try:
                        test(**{argument: case}, **fixtures)
                    except Exception as problem:
                        problems.append((case, problem))
                _tell(problems)

        signature = inspect.signature(test)
        kept = [one for one in signature.parameters.values() if one.name != argument]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    def _tell(problems: list[tuple[Any, Exception]]) -> None:
        if problems:
            told = [f"{name(case)}: {type(one).__name__}: {one}" for case, one in problems]
            raise AssertionError("\n".join([f"{len(told)} of {len(listed)} fail:", *told]))

    return decorate
