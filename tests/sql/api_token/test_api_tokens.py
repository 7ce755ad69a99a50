"""ff.create_api_token, use_api_token, list_api_tokens, revoke_api_token and list_audit."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from support.factories import refused

HASH = hashlib.sha256(b"a token").digest()
GOOD = {
    "namespace": "a",
    "token_id": UUID(int=7),
    "token_hash": HASH,
    "prefix": "ffp_abcdef",
    "name": "ci",
    "scopes": ["read", "submit"],
    "ttl": timedelta(days=1),
    "actor": "ann",
}


async def create(db, **given):
    given = {**GOOD, **given}
    named = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(given, 1))
    return await db.fetchrow(f"select * from ff.create_api_token({named})", *given.values())


async def use(db, digest=HASH):
    return await db.fetchrow("select * from ff.use_api_token($1)", digest)


async def test_a_token_is_made_used_and_revoked(db, clock):
    await clock.freeze()
    first = await create(db)
    assert dict(await create(db)) == dict(first)
    assert first["expires_at"] - first["created_at"] == timedelta(days=1)
    found = await use(db)
    assert (found["namespace"], found["scopes"]) == ("a", ["read", "submit"])
    assert found["expires_in"] == timedelta(days=1)
    used = "select last_used_at from ff.list_api_tokens('a')"
    at = await db.fetchval(used)
    await clock.advance(timedelta(seconds=30))
    await use(db)
    assert await db.fetchval(used) == at
    await clock.advance(timedelta(seconds=31))
    await use(db)
    assert await db.fetchval(used) == at + timedelta(seconds=61)
    revoke = "select outcome from ff.revoke_api_token('a', $1, 'left', 'bob')"
    assert await db.fetchval(revoke, GOOD["token_id"]) == "revoked"
    assert await db.fetchval(revoke, GOOD["token_id"]) == "unchanged"
    assert await use(db) is None
    acts = await db.fetch("select * from ff.list_audit('a')")
    assert [(row["act"], row["actor"], row["reason"]) for row in acts] == [
        ("revoke_api_token", "bob", "left"),
        ("create_api_token", "ann", None),
    ]
    assert json.loads(acts[1]["after"])["scopes"] == ["read", "submit"]
    assert await db.fetch("select from ff.list_audit('b')") == []
    page = await db.fetch("select * from ff.list_audit(null, $1, 1)", acts[0]["audit_id"])
    assert [row["act"] for row in page] == ["create_api_token"]


async def test_an_expired_and_an_unknown_token_are_nobodys(db, clock):
    await create(db)
    assert await use(db, hashlib.sha256(b"another").digest()) is None
    await clock.advance(timedelta(days=1))
    assert await use(db) is None


async def test_all_servers_of_a_database_get_one_key(db):
    keys = [await db.fetchval("select ff.read_server_key('a')") for _ in range(2)]
    keys.append(await db.fetchval("select ff.read_server_key(null)"))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


BAD = [
    ("namespace", None),
    ("namespace", "a b"),
    ("token_id", None),
    ("token_id", UUID(int=0)),
    ("token_hash", b"short"),
    ("token_hash", None),
    ("prefix", "abc"),
    ("prefix", "ffp_" + "x" * 43),
    ("name", ""),
    ("name", "a\nb"),
    ("scopes", []),
    ("scopes", ["root"]),
    ("scopes", None),
    ("ttl", timedelta(0)),
    ("ttl", timedelta(days=4000)),
    ("actor", "a\nb"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
async def test_a_bad_field_is_named_and_nothing_is_stored(db, field, value):
    with refused("WF001", field={"ttl": "expires"}.get(field, field)):
        await create(db, **{field: value})
    assert await db.fetch("select from ff.list_api_tokens(null)") == []


async def test_an_id_belongs_to_one_token(db):
    await create(db)
    with refused("WF001", field="token_id"):
        await create(db, token_hash=hashlib.sha256(b"another").digest())


async def test_a_token_of_another_namespace_is_not_found(db):
    await create(db)
    for namespace, id in (("b", GOOD["token_id"]), ("a", uuid4())):
        with refused("WF315"):
            await db.execute("select ff.revoke_api_token($1, $2)", namespace, id)
    assert await db.fetch("select from ff.list_api_tokens('b')") == []
    assert (await use(db))["namespace"] == "a"
