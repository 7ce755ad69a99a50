"""Forms from JSON Schema: their fields, and the values that they mean."""

from __future__ import annotations

import pytest

from flowfabric import InvalidInput
from flowfabric.dashboard.forms import Field, fields_of, value_of

ORDER = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "price": {"type": "number"},
        "note": {"type": "string", "description": "For people.", "default": "none"},
        "fast": {"type": "boolean"},
        "size": {"$ref": "#/$defs/Size"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["amount", "fast"],
    "$defs": {"Size": {"enum": ["s", "m"]}},
}


def test_an_object_has_a_field_for_each_member():
    assert fields_of(ORDER) == (
        # The fields that must be filled come first.
        Field("value.amount", "amount", "whole", True),
        Field("value.fast", "fast", "choice", True, choices=("true", "false")),
        Field("value.price", "price", "number", False),
        Field("value.note", "note", "text", False, "For people.", "none"),
        Field("value.size", "size", "choice", False, choices=('"s"', '"m"')),
        Field("value.tags", "tags", "json", False),
    )


@pytest.mark.parametrize("schema", [None, {}, {"type": "array"}, {"$ref": "#/$defs/gone"}])
def test_any_other_value_is_one_field_of_json(schema):
    (field,) = fields_of(schema)
    assert (field.name, field.kind) == ("value", "json")


def test_a_filled_form_means_a_value():
    form = {"value.amount": "7", "value.fast": "true", "value.note": "", "value.size": '"m"'}
    assert value_of(ORDER, form) == {"amount": 7, "fast": True, "size": "m"}
    assert value_of(ORDER, form | {"value.tags": '["a"]', "value.price": "1.5"})["price"] == 1.5
    assert value_of({"type": "integer"}, {"value": "3"}) == 3
    assert value_of(None, {"value": '{"a": 1}'}) == {"a": 1}


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"value.fast": "true"}, "amount"),
        ({"value.amount": "x", "value.fast": "true"}, "amount"),
        ({"value.amount": "1", "value.fast": "perhaps"}, "fast"),
        ({"value.amount": "1", "value.fast": "true", "value.size": '"l"'}, "value"),
        ({"value.amount": "1", "value.fast": "true", "value.tags": "[" * 100_000}, "tags"),
    ],
)
def test_a_form_that_does_not_fit_names_the_field(form, field):
    with pytest.raises(InvalidInput) as caught:
        value_of(ORDER, form)
    assert caught.value.field == field
