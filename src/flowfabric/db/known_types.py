"""Connections that know the array types of PostgreSQL, so that the driver need not look them up.

The driver knows the built-in types, but not their arrays. It would look up the arrays before the
first call on every new connection. Each look-up takes three queries and 10 ms of the server's
processor time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    _Plain = asyncpg.Connection[Any]
else:
    _Plain = asyncpg.Connection

# The array types that the functions of the engine take and return: the name of the element type,
# the OID of the array type, and the OID of the element type. PostgreSQL never changes these OIDs.
ARRAYS = (
    ("bool", 1000, 16),
    ("bytea", 1001, 17),
    ("int2", 1005, 21),
    ("int4", 1007, 23),
    ("text", 1009, 25),
    ("int8", 1016, 20),
    ("timestamptz", 1185, 1184),
    ("interval", 1187, 1186),
    ("uuid", 2951, 2950),
    ("jsonb", 3807, 3802),
)

# The rows that the driver's own query would return for these types.
_KNOWN = {
    array: {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for name, array, element in ARRAYS
}
# The driver checks whether the look-up used a statement without a name. This stand-in has a name.
_NO_STATEMENT = SimpleNamespace(name="known")


class KnownTypes(_Plain):
    """A connection that looks up only types that are not in `ARRAYS`."""

    async def _introspect_types(self, typeoids: Any, timeout: Any) -> Any:
        # This replaces a private method of the driver. If a later driver does not call it, the
        # driver looks the types up itself.
        if _KNOWN.keys() >= set(typeoids):
            return [_KNOWN[oid] for oid in typeoids], _NO_STATEMENT
        return await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
