"""What an error says: its message, its facts, and what to do."""

from __future__ import annotations

import pytest

from flowfabric.core import errors
from flowfabric.core.errors import FlowFabricError


def test_an_error_without_words_uses_its_description():
    assert str(errors.StaleLease()) == (
        "This lease is not the current lease of the execution. Calls under it have no effect."
    )


def test_facts_travel_with_the_error():
    error = errors.ExecutionNotFound(execution_id="x")
    assert error.facts == {"execution_id": "x"}
    assert FlowFabricError("plain").facts == {}


def test_the_engine_s_facts_are_told():
    error = FlowFabricError.from_engine("not_active", {"phase": "terminal", "outcome": None})
    assert isinstance(error, errors.ExecutionNotActive)
    assert str(error).endswith("(phase=terminal)")
    assert error.facts == {"phase": "terminal", "outcome": None}


def test_an_outcome_word_and_its_code_are_one_error():
    for code, kind in FlowFabricError._by_code.items():
        assert kind.name is not None
        assert FlowFabricError._by_name[kind.name] is kind
        assert type(FlowFabricError.from_engine(code, {})) is kind
        assert type(FlowFabricError.from_engine(kind.name, {})) is kind


def test_invalid_input_names_its_field():
    error = FlowFabricError.from_engine("WF001", {"field": "limit", "problem": "must be 1 to 9"})
    assert isinstance(error, errors.InvalidInput)
    assert (error.field, error.problem) == ("limit", "must be 1 to 9")
    assert str(error) == "limit: must be 1 to 9"
    assert error.facts == {"field": "limit", "problem": "must be 1 to 9"}


def test_invalid_input_keeps_what_else_the_engine_said():
    error = FlowFabricError.from_engine(
        "invalid", {"field": "fence", "problem": "fence_required", "hint": "give all four"}
    )
    assert error.facts["hint"] == "give all four"


def test_a_code_belongs_to_its_class_alone():
    assert errors.LeaseLost.code is None
    assert errors.InvalidId.code is None, "a child does not inherit its parent's code"
    assert errors.InvalidId.name is None


@pytest.mark.parametrize(
    ("caught", "raised"),
    [
        (errors.LeaseLost, errors.StaleLease),
        (errors.LeaseLost, errors.LeaseExpired),
        (errors.LeaseLost, errors.LeaseRevoked),
        (errors.NotFound, errors.ExecutionNotFound),
        (errors.Unavailable, errors.RetryExhausted),
        (errors.Unavailable, errors.ConnectionLost),
        (errors.InvalidInput, errors.MissingTag),
        (TimeoutError, errors.ResultTimeout),
        (errors.ExecutionEnded, errors.ExecutionFailed),
    ],
)
def test_an_inner_class_catches_its_leaves(caught, raised):
    with pytest.raises(caught):
        raise raised


def test_a_failed_execution_says_how():
    error = errors.ExecutionFailed("boom", type="ValueError", message="no", trace="line 1")
    assert (error.type, error.message, error.trace) == ("ValueError", "no", "line 1")
    assert errors.ExecutionFailed().type == ""


def test_a_result_that_is_not_there_in_time_is_not_an_ended_execution():
    assert not issubclass(errors.ResultTimeout, errors.ExecutionEnded)
