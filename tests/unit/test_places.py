"""How a database is named where people read it: never with its password."""

from __future__ import annotations

import pytest

from flowfabric.db.connection import place, without_password


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://ada:s3cret@db.internal/shop", "db.internal/shop"),
        ("postgresql://ada:s3cret@db.internal:5432/shop", "db.internal/shop"),
        ("postgresql://ada:s3cret@db.internal:6432/shop?sslmode=require", "db.internal:6432/shop"),
        ("postgresql://ada:p@ss@a:5432,b:5433/shop", "a,b:5433/shop"),
        ("postgresql://[::1]:5432/shop", "[::1]/shop"),
        ("postgresql:///shop?host=/run/postgresql&port=5433", "/run/postgresql:5433/shop"),
        ("postgresql://ada@%2Frun%2Fpostgresql/shop", "/run/postgresql/shop"),
        ("postgresql:///shop?password=s3cret", "localhost/shop"),
        (
            "postgresql://flowfabric@/flowfabric?host=/srv/shop/.flowfabric/postgres&port=5432",
            "embedded in /srv/shop/.flowfabric",
        ),
        (
            "postgresql://flowfabric@/other?host=/srv/shop/.flowfabric/postgres&port=5432",
            "/srv/shop/.flowfabric/postgres/other",
        ),
    ],
)
def test_a_place_is_host_and_database(url, named):
    assert place(url) == named


@pytest.mark.parametrize(
    ("url", "open", "password"),
    [
        ("postgresql://ada@h/d?host=/a&port=1", "postgresql://ada@h/d?host=/a&port=1", None),
        ("postgresql://ada:p%40s@h:1/d", "postgresql://ada@h:1/d", "p@s"),
        ("postgresql://h/d?password=s&user=ada%20b", "postgresql://h/d?user=ada%20b", "s"),
    ],
)
def test_a_password_is_taken_out_of_a_url(url, open, password):
    assert without_password(url) == (open, password)
