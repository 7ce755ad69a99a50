"""How a database is named where people read it: never with its password."""

from __future__ import annotations

import traceback

import pytest

from flowfabric.config import Settings, plain_url
from flowfabric.core.errors import InvalidInput
from flowfabric.db.connection import address_of, open_connection, without_password


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
def test_the_address_of_a_database_is_host_and_name(url, named):
    assert address_of(url) == named


@pytest.mark.parametrize(
    ("url", "open", "password"),
    [
        ("postgresql://ada@h/d?host=/a&port=1", "postgresql://ada@h/d?host=/a&port=1", None),
        ("postgresql://ada:p%40s@h:1/d", "postgresql://ada@h:1/d", "p@s"),
        ("postgresql://h/d?password=s&user=ada%20b", "postgresql://h/d?user=ada%20b", "s"),
        ("postgresql://h/d?sslpassword=s&passfile=/p", "postgresql://h/d?passfile=%2Fp", None),
        ("postgresql://ada:p@h/d?PASSWORD=s&SslPassword=t", "postgresql://ada@h/d", "p"),
        ("postgresql://ada@h/d?%70assword=s", "postgresql://ada@h/d", "s"),
    ],
)
def test_a_password_is_taken_out_of_a_url(url, open, password):
    assert without_password(url) == (open, password)


UNREADABLE = "cannot be read; percent-encode / # ? in the password"
PORT = "the port must be a number from 1 to 65535"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://ada:hunter2secret/x@h/d", UNREADABLE),
        ("postgresql://ada:123/hunter2@h/d", UNREADABLE),
        ("postgresql://ada:p@hunter2/x@h/d", UNREADABLE),
        ("postgresql://ada:hunter2#x@h/d", UNREADABLE),
        ("postgresql://ada:123#hunter2@h/d", UNREADABLE),
        ("postgresql://ada@h/d?password=hunter2#x", UNREADABLE),
        ("postgresql://ada:hunter2?x@h/d", UNREADABLE),
        ("postgresql://ada:123?hunter2@h/d", UNREADABLE),
        ("postgresql://ada:123?hunter2=x@h/d", UNREADABLE),
        ("postgresql://ada:123/4?hunter2=x@h/d", UNREADABLE),
        ("postgresql+asyncpg://ada:123?ssl=hunter2@h/d", UNREADABLE),
        ("postgresql://ada:hunter2[@h/d", UNREADABLE),
        ("postgresql://[::1/d", UNREADABLE),
        ("postgresql://[hunter2]/d", UNREADABLE),
        ("postgresql://h:hunter2/d", UNREADABLE),
        ("postgresql://h:٣/d", UNREADABLE),
        ("postgresql://h/d?port=hunter2", UNREADABLE),
        ("postgresql://h:99999/d", PORT),
        ("postgresql://a:5432,h:0/d", PORT),
        ("postgresql://[::1]:99999/d", PORT),
        ("postgresql:///d?host=/run&port=99999", PORT),
    ],
)
async def test_an_unreadable_url_is_refused_without_its_parts(url, problem):
    for read in (lambda: plain_url(url), lambda: Settings(database_url=url)):
        with pytest.raises(InvalidInput) as refused:
            read()
        assert str(refused.value) == f"database_url: {problem}"
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///d?host=/a,/b&port=5432,5433&user=ada@corp",
        "postgresql://ada@h:5432/d?application_name=a@b",
        "postgresql://ada%40corp:p%2F%23%3F%40@[::1]:5432/d",
        "postgresql://ada:p@ss@a:5432,b:/d?options=-c%20search_path%3Dx",
        "postgresql://ada@%2Frun%2Fpostgresql:6432/shop",
        "mysql://h:99999/d",
    ],
)
def test_other_urls_stay_as_they_are(url):
    assert plain_url(url) == url


def test_only_a_url_of_postgres_is_taken_apart():
    with pytest.raises(InvalidInput, match="must begin with postgresql://"):
        without_password("host=h password=hunter2")


async def test_what_the_driver_cannot_read_is_not_repeated(monkeypatch):
    monkeypatch.setenv("PGPORT", "hunter2")
    with pytest.raises(InvalidInput) as refused:
        async with open_connection("postgresql://localhost/d"):
            pass
    assert str(refused.value) == f"database_url: {UNREADABLE}"
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
