"""Absurd's SQL, from the package of its command-line tool."""

from __future__ import annotations

import psycopg
from absurdctl import BUNDLED_SCHEMA_SQL


def install(url: str) -> None:
    """Install Absurd's schema as `absurdctl init` does, but without psql."""
    with psycopg.connect(url) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
