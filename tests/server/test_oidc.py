"""Bearer tokens of an OpenID Connect provider: what is accepted, and everything that is not."""

from __future__ import annotations

import base64
import json
import time

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.server import server
from server.stage import OURS, Caller

jwt = pytest.importorskip("jwt")
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402

from flowfabric.server.oidc import Oidc  # noqa: E402

ISSUER = "https://login.example.org"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "one"}


def claims(**more):
    given = {
        "iss": ISSUER,
        "aud": "flowfabric",
        "sub": "ann",
        "exp": time.time() + 600,
        "groups": ["developers"],
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


def signed(key=KEY, kid="one", algorithm="RS256", **more):
    return jwt.encode(claims(**more), key, algorithm=algorithm, headers={"kid": kid})


def unsigned():
    parts = [{"alg": "none", "kid": "one"}, claims()]
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        )
        + "."
    )


@pytest.fixture
def issuer():
    """What the provider was asked for."""
    return []


@pytest.fixture
async def oidc(make_app, issuer):
    async def fetch(url):
        issuer.append(url)
        return {"jwks_uri": f"{ISSUER}/keys"} if "well-known" in url else {"keys": [PUBLIC]}

    auth = Oidc(
        issuer=ISSUER,
        audience="flowfabric",
        claim="groups",
        scopes={"developers": ["submit"], "operators": ["operate"]},
        namespace=OURS,
        fetch=fetch,
    )
    return server(make_app(namespace=OURS), auth=auth)


async def test_claims_become_scopes_and_a_namespace(oidc, issuer):
    async with Caller(oidc, signed()) as ann, Caller(oidc, signed(groups=["operators"])) as op:
        facts = (await ann.get("/v1/capabilities")).json()
        assert facts["scopes"] == ["read", "submit"]
        assert (facts["namespace"], facts["name"]) == (OURS, "oidc ann")
        assert (await ann.post("/v1/lanes/x/pause")).status_code == 403
        assert (await op.post("/v1/lanes/x/pause")).status_code == 404
    assert len(issuer) == 2  # the keys were read once


WRONG = {
    "of another key": lambda: signed(key=OTHER),
    "of an unknown key": lambda: signed(kid="two"),
    "expired": lambda: signed(exp=time.time() - 60),
    "without an expiry": lambda: signed(exp=None),
    "of another issuer": lambda: signed(iss="https://evil.example"),
    "without an issuer": lambda: signed(iss=None),
    "for another audience": lambda: signed(aud="other"),
    "without an audience": lambda: signed(aud=None),
    "without a group": lambda: signed(groups=[]),
    "with an unknown group": lambda: signed(groups=["admins"]),
    "with groups of another form": lambda: signed(groups={"admins": 1}),
    "not signed": unsigned,
    "signed with a shared secret": lambda: jwt.encode(
        claims(), "x" * 40, algorithm="HS256", headers={"kid": "one"}
    ),
    "no token at all": lambda: "x.y.z",
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_token_is_refused(oidc, kind):
    async with Caller(oidc, WRONG[kind]()) as caller:
        answer = await caller.get("/v1/executions")
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:flowfabric:unauthorized")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("issuer", {"issuer": "http://login"}),
        ("audience", {"audience": ""}),
        ("algorithms", {"algorithms": ["HS256"]}),
        ("algorithms", {"algorithms": ["none"]}),
        ("namespace", {"namespace": None}),
        ("scope", {"scopes": {"x": ["root"]}}),
    ],
)
def test_a_careless_setting_is_refused(field, given):
    settings = {
        "issuer": ISSUER,
        "audience": "flowfabric",
        "scopes": {"x": ["read"]},
        "namespace": OURS,
        **given,
    }
    with pytest.raises(InvalidInput) as error:
        Oidc(**settings)
    assert error.value.field == field
