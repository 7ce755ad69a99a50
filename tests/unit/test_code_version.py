"""May a code version be switched off? The answer to an operator."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.core.code_version import VersionInfo, answer_versions


def info(**facts: Any) -> VersionInfo:
    plain: dict[str, Any] = {"namespace": "default", "task": "order", "code_version": "1"}
    plain |= {"in_flight": 0, "workers": 0, "beginners": 0, "readers": []}
    return VersionInfo(**(plain | facts))


@pytest.mark.parametrize(
    ("tasks", "may_stop", "words"),
    [
        ([{}], True, "Version 1 may be switched off: none of its executions is in flight."),
        ([{"workers": 2}], True, "none of its executions is in flight"),
        ([{"workers": 2, "beginners": 1}], False, "is in use: none of its executions is in"),
        ([{"workers": 1, "in_flight": 1}], False, "must keep running: 1 execution is in flight"),
        ([{"workers": 1, "beginners": 1, "in_flight": 3}], False, "is in use: 3 executions are"),
        ([{"in_flight": 3}], False, "has no worker, and 3 executions are in flight"),
        ([{"in_flight": 3, "readers": ["2"]}], True, "workers of version 2 continue"),
        ([{"beginners": 1, "workers": 1, "readers": ["2"]}], True, "none of its executions is"),
        ([{"in_flight": 3, "readers": ["2"]}, {"task": "b", "in_flight": 1}], False, "no worker"),
        ([{"in_flight": 3, "readers": ["2"]}, {"task": "b"}], True, "version 2 continue"),
    ],
)
def test_a_version_may_be_switched_off_when_nobody_would_be_held(tasks, may_stop, words):
    (answer,) = answer_versions([info(**facts) for facts in tasks])
    assert answer.may_stop is may_stop
    assert words in answer.sentence


def test_every_version_of_every_namespace_has_its_answer():
    found = answer_versions(
        [info(code_version="2"), info(namespace="b"), info(), info(task="c", in_flight=1)]
    )
    assert [(one.namespace, one.code_version, one.may_stop) for one in found] == [
        ("b", "1", True),
        ("default", "1", False),
        ("default", "2", True),
    ]
