"""Forms from JSON Schema: the fields of a form, and the value of a filled form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowfabric.core.errors import InvalidInput
from flowfabric.core.json_schema import find_problem

# The prefix of the names of the fields, so that they never clash with the form's own fields.
PREFIX = "value."
# The field that holds a whole value as JSON.
WHOLE = "value"
_INPUTS = {"integer": "whole", "number": "number", "boolean": "choice", "string": "text"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    `kind` is `whole` (a whole number), `number`, `text`, `choice` or `json`. `choices` are the
    values of a `choice`, as JSON.
    """

    name: str
    label: str
    kind: str
    is_required: bool
    hint: str = ""
    preset: str = ""
    choices: tuple[str, ...] = ()


def fields_of(schema: Any) -> tuple[Field, ...]:
    """Return the fields of the form for a schema.

    If the schema lists the properties of an object, there is one field for each property. Otherwise
    there is one field for the whole value.
    """
    schema = schema if isinstance(schema, dict) else {}
    parts = schema.get("$defs") or {}
    whole = _resolved(schema, parts)
    members = whole.get("properties")
    if whole.get("type") != "object" or not isinstance(members, dict):
        return (_field(WHOLE, str(whole.get("title") or "Value"), whole, parts, True),)
    needed = whole.get("required") or ()
    found = [
        _field(PREFIX + name, name, member, parts, name in needed)
        for name, member in members.items()
    ]
    # The database does not keep the order of names. The fields that must be filled come first.
    return tuple(sorted(found, key=lambda one: not one.is_required))


def value_of(schema: Any, form: Mapping[str, str]) -> Any:
    """Return the value of a filled form. The error for a wrong value names the field."""
    value: Any = {}
    for field in fields_of(schema):
        text = form.get(field.name, "")
        if field.name == WHOLE:
            value = _read(field, text)
        elif field.is_required or text.strip():
            value[field.label] = _read(field, text)
    problem = find_problem(schema, value)
    if problem is not None:
        raise InvalidInput(field="value", problem=f"does not fit: {problem}")
    return value


def _read(field: Field, text: str) -> Any:
    if field.kind == "text":
        return text
    if not text.strip():
        raise InvalidInput(field=field.label, problem="must be given")
    try:
        if field.kind == "whole":
            return int(text)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        wanted = {"whole": "a whole number", "number": "a number"}.get(field.kind, "JSON")
        raise InvalidInput(field=field.label, problem=f"must be {wanted}") from error


def _field(name: str, label: str, schema: Any, parts: Mapping[str, Any], needed: bool) -> Field:
    schema = _resolved(schema, parts)
    kind = _INPUTS.get(str(schema.get("type")), "json")
    choices: tuple[str, ...] = ()
    if "enum" in schema:
        kind, choices = "choice", tuple(json.dumps(one) for one in schema["enum"])
    elif kind == "choice":
        choices = ("true", "false")
    preset = ""
    if "default" in schema:
        given = schema["default"]
        is_text = kind == "text" and isinstance(given, str)
        preset = given if is_text else json.dumps(given)
    hint = str(schema.get("description") or "")
    return Field(name, label, kind, needed, hint, preset, choices)


def _resolved(schema: Any, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a reference names. Return any other schema unchanged."""
    if not isinstance(schema, dict):
        return {}
    name = schema.get("$ref")
    if isinstance(name, str) and name.startswith("#/$defs/"):
        found = parts.get(name.removeprefix("#/$defs/"))
        return found if isinstance(found, dict) else {}
    return schema
