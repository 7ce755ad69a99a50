"""`namespace`: which login may act where."""

from __future__ import annotations

import pytest


@pytest.fixture
async def guest(db):
    name = f"guest_{db.name}"
    await db.execute(f"create role {name}")
    yield name
    await db.execute(f"drop role {name}")


async def test_a_login_is_bound_listed_and_freed(ff, guest):
    assert (await ff("namespace", "grant", guest, "shop")).line["outcome"] == "granted"
    assert (await ff("namespace", "grant", guest, "shop")).line["outcome"] == "unchanged"
    line = (await ff("namespace", "ls")).line
    assert (line["login"], line["namespace"]) == (guest, "shop")
    table = (await ff("namespace", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == ["LOGIN", "NAMESPACE", "SINCE", "BY"]
    assert (await ff("namespace", "revoke", guest)).line["outcome"] == "revoked"
    found = await ff("namespace", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no login is bound" in found.err


async def test_a_role_that_is_not_there_is_a_usage_error(ff, db):
    found = await ff("namespace", "grant", "nobody_of_that_name", "shop")
    assert found.code == 2
    assert "login: there is no such role" in " ".join(found.err.split())
