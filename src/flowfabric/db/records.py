"""Build the functions that turn rows into records by column name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from flowfabric.db.functions import Statement

Record = TypeVar("Record")


def reader(
    record: type[Record],
    statement: Statement,
    *,
    given: str = "",
    unread: str = "",
    default: str = "",
    **converted: Callable[[Any], Any],
) -> Callable[..., Record]:
    """Build the function that turns a row of a statement into a record.

    A field takes the column of the same name; the field `attempt` counts from 1 and takes
    `attempt_index`, which counts from 0. `converted` maps fields to the functions that convert
    their values. `given` names fields that the caller passes after the row, `default` names fields
    that keep their default, `unread` names columns that no field takes. A mismatch raises TypeError
    here, at import.

    The function is compiled for speed: a claim builds one record per execution.
    """
    names, passed, kept = [field.name for field in fields(record)], given.split(), default.split()  # type: ignore[arg-type]
    columns = list(statement.columns)
    wanted = {name for name in names if name not in (*passed, *kept)}
    if "attempt" in wanted:
        wanted = wanted - {"attempt"} | {"attempt_index"}
    wrong = wanted.symmetric_difference({*columns} - {*unread.split()})
    wrong |= {*passed, *kept, *converted} - {*names} | {*unread.split()} - {*columns}
    if wrong:
        raise TypeError(f"{record.__name__} does not fit {statement.name}: {sorted(wrong)}")
    values = []
    for field in fields(record):  # type: ignore[arg-type]
        if field.name in kept:
            if field.default is MISSING:
                raise TypeError(f"{record.__name__}.{field.name} has no default")
            continue
        value = field.name if field.name in passed else _value(field.name, columns)
        if field.name in converted:
            value = f"read_{field.name}({value})"
        # Pass by position where possible: it costs half as much.
        by_name = field.kw_only or kept
        values.append(f"{field.name}={value}" if by_name else value)
    text = f"lambda {', '.join(['row', *passed])}: record({', '.join(values)})"
    readers = {f"read_{name}": convert for name, convert in converted.items()}
    built: Callable[..., Record] = eval(text, {"record": record, **readers})
    return built


def _value(name: str, columns: list[str]) -> str:
    """Return the expression that reads the value of a field from `row`."""
    if name != "attempt":
        return f"row[{columns.index(name)}]"
    index = f"row[{columns.index('attempt_index')}]"
    if "started_at" in columns:
        # Before the first attempt the index is 0, and so is the number.
        return f"{index} + (row[{columns.index('started_at')}] is not None)"
    return f"(None if {index} is None else {index} + 1)"


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Extend a conversion to a column that may be null."""
    return lambda value: None if value is None else convert(value)
