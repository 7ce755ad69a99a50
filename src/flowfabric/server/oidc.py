"""Recognise callers by a token of an OpenID Connect provider. The claims in the token become scopes
and a namespace.

    auth = Oidc(
        issuer="https://login.example.org", audience="flowfabric", namespace="acme",
        scopes={"developers": ["read", "submit"], "operators": ["operate"]}, claim="groups",
    )
    server(app, auth=auth)

Only asymmetric algorithms are accepted. A token must have the claims `iss`, `aud`, `exp` and `sub`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any
from urllib.request import urlopen

import jwt
from starlette.requests import Request

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_name
from flowfabric.core.token import Scope, allowed_scopes, parse_scopes
from flowfabric.server.principals import Principal, bearer, unauthorized
from flowfabric.server.problems import Problem

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "EdDSA")
LEEWAY_SECONDS = 30
# Keys are read again after KEYS_SECONDS. For an unknown key they are read at once, but at most
# every LEAST_SECONDS.
KEYS_SECONDS = 600.0
LEAST_SECONDS = 30.0
FETCH_SECONDS = 5.0

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]


async def fetch_json(url: str) -> Mapping[str, Any]:
    """Read a JSON document from a URL."""

    def read() -> Mapping[str, Any]:
        with urlopen(url, timeout=FETCH_SECONDS) as answer:
            found: Mapping[str, Any] = json.loads(answer.read(1_000_000))
            return found

    return await asyncio.to_thread(read)


class Oidc:
    """Recognises callers by a bearer token from one issuer."""

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        scopes: Mapping[str, Sequence[str]],
        claim: str = "scope",
        namespace: str | None = None,
        namespace_claim: str | None = None,
        algorithms: Sequence[str] = ("RS256", "ES256"),
        fetch: Fetch = fetch_json,
    ) -> None:
        """Trust an issuer.

        The token's claim named `claim` is a list, or words separated by blanks. `scopes` maps each
        item or word to scopes. Every caller gets the namespace `namespace`. If `namespace_claim` is
        given instead, the namespace is the text of the claim with this name.
        """
        if not issuer.startswith("https://"):
            raise InvalidInput(field="issuer", problem="must begin with https://")
        if not audience:
            raise InvalidInput(field="audience", problem="must not be empty")
        if wrong := set(algorithms) - set(ALGORITHMS):
            raise InvalidInput(
                field="algorithms",
                problem=f"{', '.join(sorted(wrong))} is not one of {', '.join(ALGORITHMS)}",
            )
        if (namespace is None) == (namespace_claim is None):
            raise InvalidInput(field="namespace", problem="give a namespace or a claim, not both")
        self._issuer, self._audience = issuer.rstrip("/"), audience
        self._scopes = {name: parse_scopes(words) for name, words in scopes.items()}
        self._claim, self._algorithms = claim, list(algorithms)
        self._namespace, self._namespace_claim = namespace, namespace_claim
        self._fetch = fetch
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at: float | None = None

    async def __call__(self, request: Request) -> Principal:
        token = bearer(request)
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=[self._issuer, f"{self._issuer}/"],
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise unauthorized("The token is not valid here.") from error
        except (OSError, KeyError) as error:
            raise Problem(503, "issuer_unavailable", "The keys cannot be read.") from error
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        given = claims.get(self._claim, ())
        words = given.split() if isinstance(given, str) else given
        if not isinstance(words, list | tuple):
            words = ()
        found = {scope for word in words for scope in self._scopes.get(str(word), ())}
        if not found:
            raise unauthorized("The token gives no scope here.")
        namespace = self._namespace or claims.get(str(self._namespace_claim))
        if not isinstance(namespace, str):
            raise unauthorized("The token names no namespace.")
        check_name("namespace", namespace)
        subject = f"{claims['sub']}"[:200]
        return Principal(f"oidc {subject}", allowed_scopes(map(Scope, found)), namespace, subject)

    async def _key(self, kid: str) -> jwt.PyJWK:
        now = monotonic()
        is_old = self._read_at is None or now - self._read_at > KEYS_SECONDS
        may_read = self._read_at is None or now - self._read_at > LEAST_SECONDS
        if is_old or (kid not in self._keys and may_read):
            self._read_at = now
            where = await self._fetch(f"{self._issuer}/.well-known/openid-configuration")
            keys = await self._fetch(str(where["jwks_uri"]))
            self._keys = {
                str(one.get("kid", "")): jwt.PyJWK(one)
                for one in keys.get("keys", ())
                if one.get("use", "sig") == "sig" and one.get("kty") in ("RSA", "EC", "OKP")
            }
        if kid not in self._keys:
            raise ValueError("unknown key")
        return self._keys[kid]
