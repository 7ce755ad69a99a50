"""Payloads with gaps: how results are filled in, and what is wrong with those that cannot be."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import FlowInput
from flowfabric.core.ids import mint
from flowfabric.tasks import describe_arguments, fill_inputs

NODE = mint()
START = datetime(2026, 1, 1, tzinfo=UTC)


def given(
    name: str | None, result: Any, *, group: int = 0, at: int = 0, is_counted: bool = True
) -> FlowInput:
    stored = result if isinstance(result, bytes | None) else json.dumps(result).encode()
    moment = START + timedelta(seconds=at)
    return FlowInput(NODE, mint(), name, group, UUID(int=at), is_counted, moment, None, stored)


def payload(arguments: Any, *inputs: Any) -> bytes:
    return json.dumps({"arguments": arguments, "inputs": inputs}).encode()


def filled(stored: bytes, *inputs: FlowInput) -> Any:
    return json.loads(fill_inputs(stored, inputs))


def test_results_go_where_they_belong():
    stored = payload(
        {"a": None, "b": [1, None], "c": {"x": [{"y": None}]}},
        {"at": ["a"], "of": "one"},
        {"at": ["b", 1], "of": "two"},
        {"at": ["c", "x", 0, "y"], "of": "one"},
    )
    found = filled(stored, given("one", {"n": 1}), given("two", "text"))
    assert found == {"a": {"n": 1}, "b": [1, "text"], "c": {"x": [{"y": {"n": 1}}]}}


def test_the_first_of_a_group_is_the_first_in_the_order_given():
    stored = payload({"a": None}, {"at": ["a"], "first": 1})
    inputs = (
        given("x", 1, group=0, at=0),
        given("y", 2, group=1, at=1, is_counted=False),
        given("z", 3, group=1, at=2),
        given("w", 4, group=1, at=3),
    )
    assert filled(stored, *inputs) == {"a": 3}


def test_what_was_not_counted_is_none():
    stored = payload({"a": None, "b": None}, {"at": ["a"], "of": "x"}, {"at": ["b"], "of": "y"})
    assert filled(stored, given("x", 1, is_counted=False), given("y", 2)) == {"a": None, "b": 2}


def test_a_node_in_two_groups_is_read_by_the_one_that_counted():
    stored = payload({"a": None}, {"at": ["a"], "of": "x"})
    assert filled(stored, given("x", 1, is_counted=False), given("x", 1, group=1)) == {"a": 1}


@pytest.mark.parametrize("result", [None, b"null"])
def test_a_node_that_has_no_result_gives_none(result):
    stored = payload({"a": None}, {"at": ["a"], "of": "x"})
    assert filled(stored, given("x", result)) == {"a": None}


def test_numbers_come_through_as_they_are():
    stored = payload({"a": None}, {"at": ["a"], "of": "x"})
    value = {"big": 2**80, "small": 0.1, "text": "ä\u2028", "none": None}
    assert filled(stored, given("x", value)) == {"a": value}


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b"{",
        b'{"arguments": {}}',
        payload({}, {"of": "x"}),
        payload({}, {"at": [], "of": "x"}),
        payload({}, {"at": ["a", "b"], "of": "x"}),
        payload({"a": []}, {"at": ["a", 3], "of": "x"}),
        payload({}, 7),
    ],
)
def test_what_was_not_written_so_is_refused(stored):
    with pytest.raises(InvalidInput, match=r"payload: is not valid json\+inputs"):
        fill_inputs(stored, [given("x", 1)])


def test_a_result_that_is_no_json_is_refused():
    stored = payload({"a": None}, {"at": ["a"], "of": "x"})
    with pytest.raises(InvalidInput, match="the result of x is not JSON"):
        fill_inputs(stored, [given("x", b"\xff")])


def test_a_reader_is_told_whose_results_belong_there():
    stored = payload(
        {"a": None, "b": [None, 2]}, {"at": ["a"], "first": 1}, {"at": ["b", 0], "of": "x"}
    )
    assert describe_arguments(stored) == {"a": "<result of the first>", "b": ["<result of x>", 2]}
