"""Build functions that turn rows into records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from itertools import repeat
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
    """Return a function that turns a row of a statement into a record.

    A field gets the value of the column with the same name. There is one exception: the field
    `attempt`, which counts from 1, is computed from the column `attempt_index`, which counts from
    0. `converted` maps a field to the function that converts its value. `given` lists fields that
    the caller passes after the row. `default` lists fields that keep their default. `unread` lists
    columns without a field. Raise TypeError if a field or a column is left over.

    The function is compiled, because it must be fast: a claim builds one record per execution.
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
        # Pass values by position where possible: it costs half as much as by name.
        by_name = field.kw_only or kept
        values.append(f"{field.name}={value}" if by_name else value)
    text = f"lambda {', '.join(['row', *passed])}: record({', '.join(values)})"
    readers = {f"read_{name}": convert for name, convert in converted.items()}
    built: Callable[..., Record] = eval(text, {"record": record, **readers})
    return built


def array_reader(
    record: type[Record],
    statement: Statement,
    *,
    given: str = "",
    **computed: tuple[Callable[..., Iterable[Any]], str],
) -> Callable[..., list[Record]]:
    """Return a function that turns a row of arrays into a list of records.

    A field gets its values from the column with the same name and an s: `rank` from `ranks`.
    `given` lists fields that the caller passes after the row; all records get the same value.
    `computed` maps a field to a pair: a function that returns its values, and the names of the
    columns and given fields that the function takes. Raise TypeError if a field or a column is left
    over.

    The records are built with `map`, because it is fast: a claim builds one record per execution.
    """
    names, passed = [field.name for field in fields(record)], given.split()  # type: ignore[arg-type]
    indexes = {column: f"row[{index}]" for index, column in enumerate(statement.columns)}
    taken = {name: computed[name][1].split() for name in computed}
    for name in names:
        if name not in (*passed, *computed):
            taken[name] = [f"{name}s"]
    read = {column for columns in taken.values() for column in columns}
    wrong = {*indexes} - read | read - {*indexes, *passed} | {*passed, *computed} - {*names}
    if wrong:
        raise TypeError(f"{record.__name__} does not fit {statement.name}: {sorted(wrong)}")
    values = []
    for name in names:
        if name in passed:
            values.append(f"repeat({name})")
            continue
        value = ", ".join(indexes.get(column, column) for column in taken[name])
        values.append(f"read_{name}({value})" if name in computed else value)
    text = f"lambda {', '.join(['row', *passed])}: list(map(record, {', '.join(values)}))"
    readers = {f"read_{name}": compute for name, (compute, _) in computed.items()}
    built: Callable[..., list[Record]] = eval(text, {"record": record, "repeat": repeat, **readers})
    return built


def _value(name: str, columns: list[str]) -> str:
    """Return the Python expression that reads the value of a field from `row`."""
    if name != "attempt":
        return f"row[{columns.index(name)}]"
    index = f"row[{columns.index('attempt_index')}]"
    if "started_at" in columns:
        # Before the first attempt, index and number are both 0.
        return f"{index} + (row[{columns.index('started_at')}] is not None)"
    return f"(None if {index} is None else {index} + 1)"


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that returns None for None, and otherwise calls `convert`."""
    return lambda value: None if value is None else convert(value)
