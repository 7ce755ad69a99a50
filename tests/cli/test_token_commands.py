"""`token`: tokens of the HTTP server. `serve`: what it refuses before it listens."""

from __future__ import annotations

import socket

import pytest

from flowfabric.core.token import is_token


async def test_a_token_is_made_listed_and_revoked(ff):
    made = (await ff("token", "new", "ci", "--scope", "read,submit", "--expires", "90d")).line
    assert is_token(made["token"])
    listed = await ff("token", "ls")
    assert (listed.line["name"], listed.line["scopes"]) == ("ci", ["read", "submit"])
    assert made["token"] not in listed.out
    table = (await ff("token", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "ID",
        "TOKEN",
        "NAME",
        "SCOPES",
        "NAMESPACE",
        "STATE",
        "LAST",
        "USED",
    ]
    assert "expires in" in table[1]
    assert (await ff("token", "revoke", made["id"], "-r", "left")).line["outcome"] == "revoked"
    assert (await ff("token", "revoke", made["id"])).line["outcome"] == "unchanged"
    assert "revoked" in (await ff("token", "ls", "-o", "table")).out
    plain = await ff("token", "new", "x", "--scope", "admin", "-o", "table")
    assert is_token(plain.out.strip())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("token", "new", "x", "--scope", "root"), 2, "'root' is not one of read, submit"),
        (("token", "new", "x", "--scope", "read", "--expires", "soon"), 2, "must look like 30s"),
        (("token", "revoke", "abc"), 2, "is not the id of a token"),
        (
            ("token", "revoke", "00000000-0000-0000-0000-000000000001"),
            3,
            "There is no such token in this namespace; `flowfabric token ls --all-namespaces` "
            "shows the namespace of every token",
        ),
        (("serve", "--auth", "none", "--host", "0.0.0.0"), 2, "not on 0.0.0.0"),
    ],
)
async def test_wrong_usage_is_explained(ff, arguments, code, words):
    found = await ff(*arguments)
    assert found.code == code
    assert words in " ".join(found.err.split())


async def test_serve_says_that_its_port_is_taken(ff):
    with socket.create_server(("127.0.0.1", 0)) as other:
        found = await ff("serve", "--port", str(other.getsockname()[1]))
    assert found.code == 2
    assert "is taken, perhaps by `flowfabric dev`" in " ".join(found.err.split())
