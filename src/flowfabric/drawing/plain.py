"""Turns records into plain data and JSON, in the same way for commands and for HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.ids import PartitionedId


def plain(record: Any) -> dict[str, Any]:
    """Return the facts of a record or a mapping, without null values.

    If the id contains a partition, the field `uuid` with the UUID alone is added.
    """
    is_record = is_dataclass(record) and not isinstance(record, type)
    facts: Mapping[str, Any] = asdict(record) if is_record else record
    known = {name: value for name, value in facts.items() if value is not None}
    id = known.get("id")
    if isinstance(id, PartitionedId):
        known = {"id": id, "uuid": str(id.uuid), **known}
    return known


def json_line(record: Any) -> str:
    """Return one record as one JSON line, without null values."""
    return json_text(plain(record))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return any value as JSON, with its null values. Without `indent` the JSON is one line."""
    return json.dumps(value, default=_encoded, indent=indent)


def body_facts(name: str, body: bytes | None, *, is_whole: bool) -> dict[str, Any]:
    """Return the size of stored bytes and, if `is_whole`, the bytes as text or base64."""
    if body is None:
        return {}
    size = {f"{name}_bytes": len(body)}
    if not is_whole:
        return size
    text, is_base64 = _decoded(body)
    return {**size, f"{name}_base64" if is_base64 else name: text}


def body_text(body: bytes) -> str:
    """Return stored bytes as text, or as base64 if they are not UTF-8."""
    return _decoded(body)[0]


def _decoded(body: bytes) -> tuple[str, bool]:
    """Return stored bytes as text, and whether the text is base64."""
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True


def _encoded(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case set() | frozenset():
            return sorted(value)
    return str(value)
