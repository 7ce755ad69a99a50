"""Absurd's SQL, as the package of its command-line tool brings it."""

from __future__ import annotations

import psycopg
from absurdctl import BUNDLED_SCHEMA_SQL


def install(url: str) -> None:
    """What `absurdctl init` does, without psql."""
    with psycopg.connect(url) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
