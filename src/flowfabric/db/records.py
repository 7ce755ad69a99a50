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

    A field takes the column of the same name. `converted` maps fields to the functions that convert
    their values. `given` names fields that the caller passes after the row, `default` names fields
    that keep their default, `unread` names columns that no field takes. A mismatch raises TypeError
    here, at import.

    The function is compiled for speed: a claim builds one record per execution.
    """
    names, passed, kept = [field.name for field in fields(record)], given.split(), default.split()  # type: ignore[arg-type]
    columns = list(statement.columns)
    wanted = [name for name in names if name not in (*passed, *kept)]
    wrong = {*wanted}.symmetric_difference({*columns} - {*unread.split()})
    wrong |= {*passed, *kept, *converted} - {*names} | {*unread.split()} - {*columns}
    if wrong:
        raise TypeError(f"{record.__name__} does not fit {statement.name}: {sorted(wrong)}")
    values = []
    for field in fields(record):  # type: ignore[arg-type]
        if field.name in kept:
            if field.default is MISSING:
                raise TypeError(f"{record.__name__}.{field.name} has no default")
            continue
        value = field.name if field.name in passed else f"row[{columns.index(field.name)}]"
        if field.name in converted:
            value = f"read_{field.name}({value})"
        # Pass by position where possible: it costs half as much.
        by_name = field.kw_only or kept
        values.append(f"{field.name}={value}" if by_name else value)
    text = f"lambda {', '.join(['row', *passed])}: record({', '.join(values)})"
    readers = {f"read_{name}": convert for name, convert in converted.items()}
    built: Callable[..., Record] = eval(text, {"record": record, **readers})
    return built


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Extend a conversion to a column that may be null."""
    return lambda value: None if value is None else convert(value)
