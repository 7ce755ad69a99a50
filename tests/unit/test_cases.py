"""What `for_each` makes of a test."""

from __future__ import annotations

import inspect

import pytest

from support.cases import for_each


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_every_case_is_called_and_all_that_fail_are_told(kind):
    called = []

    def plain(case, beside):
        called.append((case, beside))
        assert case % 2, "is even"

    async def coroutine(case, beside):
        plain(case, beside)

    test = for_each("case", range(4), name="no. {}".format)(plain if kind == "plain" else coroutine)
    assert list(inspect.signature(test).parameters) == ["beside"]

    async def run():
        told = test(beside="fixture")
        if kind == "async":
            await told

    with pytest.raises(AssertionError) as caught:
        await run()
    assert called == [(case, "fixture") for case in range(4)]
    assert "2 of 4 fail" in str(caught.value)
    assert "no. 0: AssertionError: is even" in str(caught.value)
    assert "no. 2: AssertionError: is even" in str(caught.value)


def test_a_rule_without_cases_is_a_mistake():
    with pytest.raises(AssertionError, match="no cases"):
        for_each("case", [])
