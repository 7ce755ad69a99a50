"""The values of signals. A task declares a type for each signal; a sender checks the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput
from flowfabric.core.signal import check_signal_name
from flowfabric.core.task import MAX_SCHEMA_BYTES
from flowfabric.tasks.codec import Codec, codec_for, describe
from flowfabric.tasks.encoding_error import EncodingError

# Schema parts that use the names of fields, not their aliases, have this prefix in their names.
_NAMED = "by name: "


def check_signals(signals: Mapping[str, Any]) -> None:
    """Refuse declared signals whose names or types cannot be used."""
    if not isinstance(signals, Mapping):
        raise InvalidInput(
            field="signals", problem=f"must map names to types, not be {type(signals).__name__}"
        )
    for name, hint in signals.items():
        check_signal_name(name)
        try:
            codec_for(hint)
        except PydanticSchemaGenerationError as error:
            raise InvalidInput(
                field="signals",
                problem=f"the type of {name!r} cannot be sent as JSON: "
                f"{error.message.splitlines()[0]}",
            ) from None


def signal_schema(codec: Codec) -> dict[str, Any] | None:
    """Return the JSON Schema of the values of a signal.

    Return None if the signal takes any value, or if the schema is too large.
    """
    schema = codec.json_schema()
    if schema and schema != codec.json_schema(by_alias=False):
        # Fields are written by their names, and read by their names or aliases.
        named = codec.json_schema(by_alias=False, prefix=_NAMED) or {}
        parts = {f"{_NAMED}{name}": part for name, part in named.pop("$defs", {}).items()}
        parts.update(schema.pop("$defs", {}))
        schema = {"anyOf": [schema, named], "$defs": parts}
    return schema if schema and len(json.dumps(schema)) <= MAX_SCHEMA_BYTES else None


def declared_schemas(signals: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON Schemas of the declared signals; None if no signal is declared."""
    if not signals:
        return None
    return {name: signal_schema(codec_for(hint)) for name, hint in signals.items()}


def check_declared(name: str, signals: Mapping[str, Any] | None, *, task: str) -> None:
    """Refuse a signal that the task has not declared.

    A task without declarations accepts all signals.
    """
    if signals and name not in signals:
        raise InvalidInput(
            field="name",
            problem=f"{task} takes no signal {name!r}; it takes {', '.join(sorted(signals))}",
        )


def encode_signal(
    name: str, value: Any, signals: Mapping[str, Any] | None = None, *, task: str = ""
) -> bytes:
    """Encode the value of a signal by its declared type; refuse a value that does not fit."""
    check_signal_name(name)
    check_declared(name, signals, task=task)
    codec = codec_for(signals[name] if signals else Any)
    try:
        return codec.write_valid(value)
    except ValidationError as error:
        problem = describe(error)
    except EncodingError as unfit:
        problem = unfit.describe()
    raise InvalidInput(
        field="value",
        problem=f"does not fit signal {name!r}{f' of {task}' if task else ''}: {problem}",
    )
