"""Check JSON values against the part of JSON Schema that the schemas of Python types use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Parts that are nested deeper are not checked here. The handler checks the whole value later.
_MAX_DEPTH = 64

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# Keywords whose schemas apply to the same value.
_BRANCHES = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
# The keywords that are read here, grouped by the type of value that each must have.
_SCHEMAS_BY_NAME = ("$defs", "properties")
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("additionalProperties", "items")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems")
# How Python writes numbers that JSON does not have.
_NO_JSON_NUMBERS = ("NaN", "Infinity", "-Infinity")
_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


class _Root:
    """The definitions of a schema document, and the results of earlier checks.

    The results are kept by schema and by the path of the value, so that no part of a value is
    checked twice with the same schema. Otherwise, nested choices (`anyOf`) could double the work at
    each depth.
    """

    def __init__(self, document: Any) -> None:
        self.parts: Mapping[str, Any] = (
            document.get("$defs", {}) if isinstance(document, dict) else {}
        )
        self.found: dict[tuple[int, str], tuple[str, str] | None] = {}


def find_problem(document: Any, value: Any) -> str | None:
    """Say where a value does not fit the schema, and why. Return None if the value fits.

    Only the keywords about types, choices, properties, items and bounds are checked here. All other
    keywords, such as `pattern` and `format`, are ignored.
    """
    found = _problem(document, value, _Root(document), "", 0)
    if found is None:
        return None
    path, words = found
    return f"{path.lstrip('.')}: {words}" if path else words


def find_flaw(schema: Any, path: str = "", depth: int = 0) -> str | None:
    """Return the first flaw of a schema: the keyword with an invalid value, and what its value must
    be. Return None if the schema has no flaw.

    A program in another language can register any JSON as a schema. Only schemas without flaws are
    used for forms and for checks of values.
    """
    if depth > _MAX_DEPTH:
        return f"{path}: is nested too deeply"
    if isinstance(schema, bool) and path:
        return None
    if not isinstance(schema, dict):
        return f"{path}: must be a schema".removeprefix(": ")
    for name, value in schema.items():
        inside = f"{path}.{name}".lstrip(".")
        if (wanted := _wanted(name, value)) is not None:
            return f"{inside}: must be {wanted}"
        parts: Iterable[tuple[str, Any]] = ()
        if name in _SCHEMAS_BY_NAME:
            parts = value.items()
        elif name in _LISTS_OF_SCHEMAS:
            parts = ((str(n), one) for n, one in enumerate(value))
        elif name in _SCHEMAS:
            parts = (("", value),)
        for part, one in parts:
            if (found := find_flaw(one, f"{inside}.{part}".rstrip("."), depth + 1)) is not None:
                return found
    return None


def _wanted(name: str, value: Any) -> str | None:
    """Return the type that the value of a keyword must have; None if the value has this type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _SCHEMAS_BY_NAME:
        return None if isinstance(value, dict) else "an object"
    if name in _LISTS_OF_SCHEMAS or name == "enum":
        return None if isinstance(value, list) else "a list"
    if name == "required":
        return None if _are_texts(value) else "a list of names"
    if name == "type":
        return None if isinstance(value, str) or _are_texts(value) else "a type, or a list of types"
    if name == "$ref":
        return None if isinstance(value, str) else "a text"
    if name in _NUMBERS:
        return None if is_number else "a number"
    if name in _SIZES:
        return None if is_number and isinstance(value, int) and value >= 0 else "a whole number"
    return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _problem(schema: Any, value: Any, root: _Root, path: str, depth: int) -> tuple[str, str] | None:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if not isinstance(value, dict | list) and schema.keys().isdisjoint(_BRANCHES):
        return _look(schema, value, root, path, depth)
    mark = (id(schema), path)
    if mark not in root.found:
        root.found[mark] = _look(schema, value, root, path, depth)
    return root.found[mark]


def _look(
    schema: Mapping[str, Any], value: Any, root: _Root, path: str, depth: int
) -> tuple[str, str] | None:
    if (name := schema.get("$ref")) is not None:
        prefix = "#/$defs/"
        if isinstance(name, str) and name.startswith(prefix):
            part = root.parts.get(name.removeprefix(prefix))
            found = _problem(part, value, root, path, depth + 1)
            if found is not None:
                return found
    for one in schema.get("allOf", ()):
        if (found := _problem(one, value, root, path, depth + 1)) is not None:
            return found
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        tried = [_problem(one, value, root, path, depth + 1) for one in choices]
        if None not in tried:
            # Report the problem of the choice that fits best: its problem is deepest inside the
            # value.
            return max((one for one in tried if one), key=lambda one: one[0].count("."))
    return (
        _type_problem(schema, value, path)
        or _number_problem(schema, value, path)
        or _object_problem(schema, value, root, path, depth)
        or _list_problem(schema, value, root, path, depth)
    )


def _type_problem(schema: Mapping[str, Any], value: Any, path: str) -> tuple[str, str] | None:
    if "const" in schema and not _is_same(value, schema["const"]):
        return path, f"must be {schema['const']!r}"
    if "enum" in schema and not any(_is_same(value, one) for one in schema["enum"]):
        return path, f"must be one of {', '.join(map(repr, schema['enum']))}"
    names = schema.get("type")
    if names is None:
        return None
    several = names if isinstance(names, list) else [names]
    if any(_has_type(value, name) for name in several):
        return None
    wanted = " or ".join(_WORDS.get(name, str(name)) for name in several)
    return path, f"must be {wanted}, not {_word_for(value)}"


def _number_problem(schema: Mapping[str, Any], value: Any, path: str) -> tuple[str, str] | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        if "minimum" in schema and value < schema["minimum"]:
            return path, f"must be at least {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            return path, f"must be at most {schema['maximum']}"
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            return path, f"must be more than {schema['exclusiveMinimum']}"
        if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
            return path, f"must be less than {schema['exclusiveMaximum']}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            return path, f"must have at least {schema['minLength']} characters"
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            return path, f"must have at most {schema['maxLength']} characters"
    return None


def _object_problem(
    schema: Mapping[str, Any], value: Any, root: _Root, path: str, depth: int
) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return None
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}.{name}", "is missing"
    others = schema.get("additionalProperties", True)
    for name, one in value.items():
        if name in known:
            found = _problem(known[name], one, root, f"{path}.{name}", depth + 1)
        elif others is False:
            found = f"{path}.{name}", "is not expected"
        else:
            found = _problem(others, one, root, f"{path}.{name}", depth + 1)
        if found is not None:
            return found
    return None


def _list_problem(
    schema: Mapping[str, Any], value: Any, root: _Root, path: str, depth: int
) -> tuple[str, str] | None:
    if not isinstance(value, list):
        return None
    if len(value) < schema.get("minItems", 0):
        return path, f"must have at least {schema['minItems']} items"
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        return path, f"must have at most {schema['maxItems']} items"
    first = schema.get("prefixItems", ())
    for n, one in enumerate(value):
        part = first[n] if n < len(first) else schema.get("items")
        if (found := _problem(part, one, root, f"{path}.{n}", depth + 1)) is not None:
            return found
    return None


def _has_type(value: Any, name: str) -> bool:
    if name in ("integer", "number") and isinstance(value, bool):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    if name == "number" and isinstance(value, str):
        return value in _NO_JSON_NUMBERS
    # A type that is not known here is accepted; the handler decides.
    return isinstance(value, _TYPES.get(name, (object,)))


def _word_for(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    for name, types in _TYPES.items():
        if isinstance(value, types):
            return _WORDS[name]
    return type(value).__name__


def _is_same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
