"""Values checked against the JSON Schemas of Python types."""

from __future__ import annotations

import json
from datetime import datetime
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from flowfabric.core.json_schema import find_flaw, find_problem
from support.proofs import drawn


class Item(BaseModel):
    name: str
    amount: int = Field(ge=1)


class Order(BaseModel):
    id: int
    items: list[Item]
    note: str | None = None


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (int, "7", "must be a whole number, not a text"),
        (int, True, "must be a whole number, not true"),
        (int, 7.0, None),
        (float, 7, None),
        (bool, None, "must be true or false, not null"),
        (str | None, None, None),
        (str | None, 1, "must be a text, not a whole number"),
        (list[int], [1, "x"], "1: must be a whole number, not a text"),
        (tuple[int, str], [1], "must have at least 2 items"),
        (dict[str, int], {"a": "b"}, "a: must be a whole number, not a text"),
        (Literal["a", "b"], "c", "must be one of 'a', 'b'"),
        (Colour, "green", "must be one of 'red', 'blue'"),
        (Order, {"id": 1, "items": []}, None),
        (Order, {"items": []}, "id: is missing"),
        (Order, {"id": 1, "items": [{"name": "tea", "amount": 0}]}, "items.0.amount: "
         "must be at least 1"),
        (Order, {"id": 1, "items": [{"name": "tea"}]}, "items.0.amount: is missing"),
        (Order | int, {"id": 1, "items": 3}, "items: must be a list, not a whole number"),
        (datetime, 5, "must be a text, not a whole number"),
        (Any, {"a": [1]}, None),
    ],
)  # fmt: skip
def test_a_value_is_checked_by_the_schema_of_its_type(hint, value, problem):
    assert find_problem(TypeAdapter(hint).json_schema(), value) == problem


def test_what_a_type_writes_always_fits_its_schema():
    """The edge must never refuse a value that the handler would take."""
    chance = drawn("values of declared signals")
    hint = dict[str, list[Order | Colour | float | None]]
    adapter = TypeAdapter(hint)
    schema = adapter.json_schema()

    def one() -> Any:
        kind = chance.randrange(4)
        if kind == 0:
            items = [Item(name="x" * n, amount=n + 1) for n in range(chance.randrange(3))]
            return Order(id=chance.randrange(9), items=items, note=chance.choice([None, "n"]))
        return [None, chance.choice([*Colour]), chance.random()][kind - 1]

    for _ in range(200):
        value = {str(n): [one() for _ in range(chance.randrange(4))] for n in range(3)}
        assert find_problem(schema, json.loads(adapter.dump_json(value))) is None


def test_a_choice_between_references_to_itself_ends():
    """Without the kept results this would take 2 to the power of 32 steps."""
    twice = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    for value in (1, "x", {}):
        assert find_problem({"$defs": {"a": twice}, **twice}, value) is None


@pytest.mark.parametrize(
    ("schema", "flaw"),
    [
        ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, None),
        ({"properties": {"a": True}, "additionalProperties": False, "x-other": 5}, None),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, None),
        (5, "must be a schema"),
        ({"properties": 5}, "properties: must be an object"),
        ({"properties": {"a": 5}}, "properties.a: must be a schema"),
        ({"properties": {"a": {"enum": 5}}}, "properties.a.enum: must be a list"),
        ({"anyOf": [{}, {"required": [{}]}]}, "anyOf.1.required: must be a list of names"),
        ({"items": {"type": 5}}, "items.type: must be a type, or a list of types"),
        ({"$defs": [1]}, "$defs: must be an object"),
        ({"minimum": "x"}, "minimum: must be a number"),
        ({"maxLength": -1}, "maxLength: must be a whole number"),
        ({"minItems": True}, "minItems: must be a whole number"),
    ],
)
def test_a_flaw_of_a_schema_is_found(schema, flaw):
    assert find_flaw(schema) == flaw


def test_a_schema_that_is_nested_too_deeply_has_a_flaw():
    schema: dict[str, object] = {}
    for _ in range(100):
        schema = {"items": schema}
    assert "is nested too deeply" in str(find_flaw(schema))
