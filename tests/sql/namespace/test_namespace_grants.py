"""ff.grant_namespace, revoke_namespace and list_namespace_grants. What other logins may do is tried
in tests/attacks."""

from __future__ import annotations

import pytest

from support.factories import refused


@pytest.fixture
async def guest(db):
    """A role of this test's own: roles are the server's, and other tests use it, too."""
    name = f"guest_{db.name}"
    await db.execute(f"create role {name}")
    yield name
    await db.execute(f"drop role {name}")


async def test_a_login_is_bound_moved_and_freed(db, guest):
    async def call(text, *arguments):
        return tuple((await db.fetchrow(f"select * from {text}", *arguments))[:3])

    assert await call("ff.grant_namespace($1, 'a', 'ada')", guest) == ("granted", guest, "a")
    assert await call("ff.grant_namespace($1, 'a')", guest) == ("unchanged", guest, "a")
    assert await call("ff.grant_namespace($1, 'b')", guest) == ("granted", guest, "b")
    rows = await db.fetch("select * from ff.list_namespace_grants()")
    assert [(row["login"], row["namespace"]) for row in rows] == [(guest, "b")]
    assert await call("ff.revoke_namespace($1)", guest) == ("revoked", guest, "b")
    assert await call("ff.revoke_namespace($1)", guest) == ("unchanged", guest, None)
    assert await db.fetch("select * from ff.list_namespace_grants()") == []


@pytest.mark.parametrize("namespace", [None, "", " ", "a b", "a\n", "x" * 257])
async def test_a_namespace_that_cannot_be_is_refused(db, guest, namespace):
    with refused("WF001", field="namespace"):
        await db.execute("select ff.grant_namespace($1, $2)", guest, namespace)


@pytest.mark.parametrize("login", [None, "", "nobody_of_that_name"])
async def test_a_login_that_is_no_role_is_refused(db, login):
    with refused("WF001", field="login"):
        await db.execute("select ff.grant_namespace($1, 'a')", login)


async def test_the_owner_cannot_lock_itself_out(db):
    with refused("WF001", field="login"):
        await db.execute("select ff.grant_namespace(session_user, 'a')")
