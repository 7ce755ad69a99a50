"""Plan, once for each type hint, how to check values before they are written as JSON.

Most types need no check: pydantic has only one way to write plain numbers, text and lists of them.
An object must have exactly the class that its type hint names: the fields that a subclass adds
would not be written. A value under `Any` must be plain JSON. Any other type counts as unsafe, for
example a union, or a type with its own serialiser, validator or constraints. Values of an unsafe
type are read back and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from flowfabric.tasks.encoding_error import EncodingError, kind_of, wrong_class

# Checks a value. Returns None, or an error for the part that would not read back.
Check = Callable[[Any], "EncodingError | None"]
Schema = Mapping[str, Any]

# Keys that a schema may have without making the type unsafe.
_NEUTRAL = frozenset({"type", "metadata", "ref", "strict"})
_SCALARS = frozenset({"none", "bool", "int", "float", "str", "uuid"})
_SCALAR_TYPES = {"none": type(None), "bool": bool, "int": int, "float": float, "str": str}
_FIELD = frozenset({"type", "metadata", "schema", "required", "frozen", "init", "kw_only", "name"})
_MODEL = _NEUTRAL | {"cls", "schema", "config", "custom_init", "root_model", "frozen"}
_DATACLASS = _NEUTRAL | {
    *("cls", "cls_name", "schema", "config", "fields", "frozen", "slots", "post_init"),
}
_TYPED_DICT = _NEUTRAL | {
    *("cls", "cls_name", "fields", "config", "total", "computed_fields", "extra_behavior"),
}
_CONFIG = frozenset(
    {"title", "frozen", "strict", "from_attributes", "validate_assignment", "validate_by_name"}
)
# Keys under which a schema contains other schemas. Under the keys in `_BY_NAME`, the schemas have
# names that users chose.
_BY_NAME = frozenset({"fields", "choices"})
_INNER = _BY_NAME | {
    *("schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "return_schema"),
    *("lax_schema", "strict_schema", "json_schema", "python_schema", "arguments_schema", "steps"),
    *("definitions", "computed_fields", "serialization", "extras_keys_schema"),
}
_ANY: Schema = {"type": "any"}
_MISSING = object()


class CodecPlan:
    """The checks for the values of one type."""

    def __init__(self, schema: Schema, *, is_call: bool = False) -> None:
        """Make a plan. If `is_call` is true, the schema is a TypedDict of a task's arguments."""
        # Whether every value that passes the check reads back equal.
        self.is_safe = True
        # Whether there is an Any that the check does not reach.
        self.has_hidden_any = False
        # Whether to write in round-trip mode: without computed fields, and Json[...] as text.
        self.is_for_itself = False
        # Whether there are objects. Validation does not copy them.
        self.has_objects = False
        # The enumerations that the check does not reach. Their members read back as members.
        self.enums: set[type] = set()
        # The class of the values, if it is a plain number or text.
        self.scalar = _SCALAR_TYPES.get(schema["type"])
        self._definitions: dict[str, Schema] = {}
        self._made: dict[str, Check | None] = {}
        self._making: set[str] = set()
        self._kinds: Mapping[str, Callable[[Schema], Check | None]] = {
            "any": lambda _: _check_open,
            "definitions": self._with_definitions,
            "definition-ref": self._ref,
            "nullable": self._nullable,
            "default": lambda schema: self._of(schema["schema"]),
            "list": self._list,
            "tuple": self._tuple,
            "set": self._set,
            "frozenset": self._set,
            "dict": self._dict,
            "typed-dict": self._call if is_call else self._typed_dict,
            "model": self._model,
            "dataclass": self._dataclass,
        }
        self.check = self._of(schema)

    def _of(self, schema: Schema) -> Check | None:
        kind = schema["type"]
        if "serialization" not in schema:
            if kind in _SCALARS and schema.keys() <= _NEUTRAL:
                return _check_float if kind == "float" else None
            if (make := self._kinds.get(kind)) is not None:
                return make(schema)
        self._doubt(schema)
        return None

    def _doubt(self, schema: Schema) -> None:
        self.is_safe = False
        for node in nodes(schema, self._definitions):
            self.has_hidden_any |= node.get("type") == "any"
            self.is_for_itself |= node.get("type") == "json"
            if node.get("type") == "enum":
                self.enums.add(node["cls"])

    def _allow(self, schema: Schema, known: frozenset[str]) -> None:
        """Mark the plan unsafe if the schema has keys outside `known`, such as constraints."""
        if not schema.keys() <= known or not (schema.get("config") or {}).keys() <= _CONFIG:
            self.is_safe = False

    def _with_definitions(self, schema: Schema) -> Check | None:
        self._definitions.update({one["ref"]: one for one in schema["definitions"]})
        return self._of(schema["schema"])

    def _ref(self, schema: Schema) -> Check | None:
        ref = schema["schema_ref"]
        if ref in self._making:  # a type that contains itself
            return lambda value: None if (check := self._made[ref]) is None else check(value)
        if ref not in self._made:
            self._making.add(ref)
            self._made[ref] = self._of(self._definitions[ref])
            self._making.discard(ref)
        return self._made[ref]

    def _nullable(self, schema: Schema) -> Check | None:
        self._allow(schema, _NEUTRAL | {"schema"})
        inner = self._of(schema["schema"])
        return None if inner is None else lambda value: None if value is None else inner(value)

    def _list(self, schema: Schema) -> Check:
        self._allow(schema, _NEUTRAL | {"items_schema"})
        inner = self._of(schema.get("items_schema", _ANY))
        return _exact(list, None if inner is None else lambda value: _among_items(inner, value))

    def _tuple(self, schema: Schema) -> Check:
        self._allow(schema, _NEUTRAL | {"items_schema", "variadic_item_index"})
        inner = [self._of(one) for one in schema["items_schema"]]
        if not any(inner):
            return _exact(tuple, None)
        at = schema.get("variadic_item_index")

        def check(value: Any) -> EncodingError | None:
            several = inner
            if at is not None:
                repeated = [inner[at]] * (len(value) - len(inner) + 1)
                several = [*inner[:at], *repeated, *inner[at + 1 :]]
            for index, (one, item) in enumerate(zip(several, value, strict=False)):
                if one is not None and (unfit := one(item)) is not None:
                    return unfit.under(index)
            return None

        return _exact(tuple, check)

    def _set(self, schema: Schema) -> Check:
        self.is_safe = False  # different members may have the same JSON
        inner = self._of(schema.get("items_schema", _ANY))
        return _exact(
            set if schema["type"] == "set" else frozenset,
            None if inner is None else lambda value: _among_items(inner, value),
        )

    def _dict(self, schema: Schema) -> Check:
        self._allow(schema, _NEUTRAL | {"keys_schema", "values_schema"})
        keys = schema.get("keys_schema", _ANY)
        if keys["type"] == "any":
            check_key: Check | None = _check_key
        else:
            check_key = self._of(keys)
            if keys["type"] != "str":
                self.is_safe = False
        check_value = self._of(schema.get("values_schema", _ANY))
        is_text = keys["type"] == "str"

        def check(value: Any) -> EncodingError | None:
            if is_text and None in value:
                return EncodingError("has None among its keys, which would read back as text")
            if check_key is None and (
                check_value is None or _are_floats(check_value, value.values())
            ):
                return None
            for key, item in value.items():
                if check_key is not None and (unfit := check_key(key)) is not None:
                    return unfit
                if check_value is not None and (unfit := check_value(item)) is not None:
                    return unfit.under(key)
            return None

        return _exact(dict, check)

    def _call(self, schema: Schema) -> Check | None:
        self._kinds = {**self._kinds, "typed-dict": self._typed_dict}
        checks = self._fields(schema["fields"])
        return (lambda value: _among(checks, value)) if checks else None

    def _typed_dict(self, schema: Schema) -> Check:
        self._allow(schema, _TYPED_DICT)
        if schema.get("computed_fields") or schema.get("extra_behavior", "ignore") != "ignore":
            self._doubt(schema)
        checks = self._fields(schema["fields"])
        known = schema["fields"].keys()
        required = [name for name, one in schema["fields"].items() if one.get("required", True)]
        needed = dict.fromkeys(required).keys()
        is_open = schema.get("extra_behavior") == "allow"

        def check(value: Any) -> EncodingError | None:
            if not is_open and not value.keys() <= known:
                lost = next(key for key in value if key not in known)
                return EncodingError("is not a key of this TypedDict and would be lost").under(lost)
            return _missing(needed, value) or _among(checks, value)

        return _exact(dict, check)

    def _model(self, schema: Schema) -> Check:
        self.has_objects = True
        self._allow(schema, _MODEL)
        fields, cls = schema["schema"], schema["cls"]
        if schema.get("root_model"):
            root = self._of(fields)
            return _exact(cls, None if root is None else lambda value: root(value.root))
        if schema.get("custom_init") or fields["type"] != "model-fields":
            self._doubt(fields)
            return _exact(cls, None)
        extra = (schema.get("config") or {}).get("extra_fields_behavior", "ignore")
        extra = fields.get("extra_behavior", extra)
        if extra == "allow":
            self.is_safe, self.has_hidden_any = False, True
        if fields.get("computed_fields"):
            self.is_safe = False
            self.is_for_itself |= extra != "ignore"
        checks, needed = self._fields(fields["fields"]), fields["fields"].keys()

        def check(value: Any) -> EncodingError | None:
            return _missing(needed, value.__dict__) or _among(checks, value.__dict__)

        return _exact(cls, check)

    def _dataclass(self, schema: Schema) -> Check:
        self.has_objects = True
        self._allow(schema, _DATACLASS)
        fields, cls = schema["schema"], schema["cls"]
        if schema.get("post_init") or fields["type"] != "dataclass-args":
            self._doubt(fields)
            return _exact(cls, None)
        if (
            fields.get("computed_fields")
            or fields.get("collect_init_only")
            or not all(one.get("init", True) for one in fields["fields"])
        ):
            self.is_safe = False
        checks = self._fields({one["name"]: one for one in fields["fields"]})

        def check(value: Any) -> EncodingError | None:
            return _among(checks, {name: getattr(value, name, _MISSING) for name in checks})

        return _exact(cls, check if checks else None)

    def _fields(self, fields: Mapping[str, Schema]) -> dict[str, Check]:
        checks = {}
        for name, one in fields.items():
            self._allow(one, _FIELD)
            if (check := self._of(one["schema"])) is not None:
                checks[name] = check
        return checks


def _exact(cls: type, inner: Check | None) -> Check:
    """Return a check for values of exactly this class. `inner` checks their content."""
    if inner is None:
        return lambda value: None if type(value) is cls else wrong_class(value, cls)
    return lambda value: inner(value) if type(value) is cls else wrong_class(value, cls)


def _among(checks: Mapping[str, Check], values: Mapping[str, Any]) -> EncodingError | None:
    for name, check in checks.items():
        value = values.get(name, _MISSING)
        if value is not _MISSING and (unfit := check(value)) is not None:
            return unfit.under(name)
    return None


def _missing(needed: Set[str], values: Mapping[str, Any]) -> EncodingError | None:
    if values.keys() >= needed:
        return None
    return EncodingError("is missing").under(next(name for name in needed if name not in values))


def _are_floats(check: Check, values: Iterable[Any]) -> bool:
    """Tell whether no value needs the check: it is the check for floats, and all are floats."""
    return check is _check_float and set(map(type, values)) <= {float}


def _among_items(check: Check, values: Iterable[Any]) -> EncodingError | None:
    if _are_floats(check, values):
        return None
    for index, value in enumerate(values):
        if (unfit := check(value)) is not None:
            return unfit.under(index)
    return None


def _check_float(value: Any) -> EncodingError | None:
    """Check that a value equals the float that will be written for it."""
    if type(value) is float or value is None:
        return None
    try:
        if float(value) == value or value != value:
            return None
    except (TypeError, ValueError, OverflowError):
        pass
    return EncodingError(f"is {kind_of(value)} and no float equals it: convert it")


def _check_open(value: Any) -> EncodingError | None:
    """Check a value whose type is Any: it must be plain JSON."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return None
    if kind is float:
        if math.isfinite(value):
            return None
        return EncodingError(f"is {value}, which is not JSON: use the hint float instead of Any")
    if kind is list:
        return _among_items(_check_open, value)
    if kind is dict:
        for key, item in value.items():
            if (unfit := _check_key(key)) is not None:
                return unfit
            if (unfit := _check_open(item)) is not None:
                return unfit.under(key)
        return None
    return EncodingError(
        f"is {kind_of(value)}, which does not read back from JSON without a type: name the type in "
        "the hint instead of Any"
    )


def _check_key(key: Any) -> EncodingError | None:
    if type(key) is str:
        return None
    return EncodingError(
        f"has {kind_of(key)} among its keys, which does not read back from JSON without a type: "
        "name the type of the keys in the hint, as in dict[int, str]"
    )


def mapped(schema: Schema, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema, with `change` applied to every schema directly inside it."""
    found = dict(schema)
    for name in _INNER & schema.keys():
        inner = schema[name]
        if name in _BY_NAME and isinstance(inner, dict):
            found[name] = {key: change(one) for key, one in inner.items()}
        elif isinstance(inner, list):
            found[name] = [_changed(one, change) for one in inner]
        else:
            found[name] = _changed(inner, change)
    return found


def nodes(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield a schema, every schema inside it, and every schema to which one of them refers."""
    pending, seen = [schema], set()

    def add(one: Any) -> Any:
        pending.append(one)
        return one

    while pending:
        one = pending.pop()
        yield one
        mapped(one, add)
        ref = one.get("schema_ref", "")
        if ref in definitions and ref not in seen:
            seen.add(ref)
            pending.append(definitions[ref])


def _changed(inner: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inner, tuple):  # a choice and its label
        return (change(inner[0]), *inner[1:])
    return change(inner) if isinstance(inner, dict) else inner
