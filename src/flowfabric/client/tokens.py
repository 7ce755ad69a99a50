"""Tokens of the HTTP server, and the audit. Only an operator may make, list and revoke tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from flowfabric.client.addresses import Scoped
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_words
from flowfabric.core.ids import uuid7
from flowfabric.core.token import (
    ApiToken,
    AuditEntry,
    NewToken,
    Scope,
    TokenUse,
    allowed_scopes,
    is_token,
    mint_token,
    parse_scopes,
    shown_prefix,
    token_hash,
)
from flowfabric.db import functions
from flowfabric.db.records import optional, reader


def _scopes(words: Sequence[str]) -> tuple[Scope, ...]:
    return tuple(map(Scope, words))


_token = reader(ApiToken, functions.LIST_API_TOKENS, scopes=_scopes)
_use = reader(
    TokenUse,
    functions.USE_API_TOKEN,
    scopes=lambda words: allowed_scopes(_scopes(words)),
    expires_in=optional(timedelta.total_seconds),
)
_entry = reader(
    AuditEntry,
    functions.LIST_AUDIT,
    before=optional(json.loads),
    after=optional(json.loads),
)


class Tokens(Scoped):
    """Operations on tokens of the HTTP server."""

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        expires: timedelta | None = None,
        actor: str | None = None,
    ) -> NewToken:
        """Make a token for this client's namespace.

        Only the answer contains the token; it is not stored anywhere.
        """
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="is needed: a token belongs to one namespace"
            )
        chosen = parse_scopes(scopes)
        check_words(actor=actor)
        token, id = mint_token(), uuid7()
        rows = await self._database.call(
            functions.CREATE_API_TOKEN,
            namespace=self._namespace,
            token_id=id,
            token_hash=token_hash(token),
            prefix=shown_prefix(token),
            name=name,
            scopes=list(chosen),
            ttl=expires,
            actor=actor,
        )
        row = rows[0]
        return NewToken(id, token, self._namespace, chosen, row["created_at"], row["expires_at"])

    async def list(self, *, after: UUID | None = None, limit: int = 1000) -> Sequence[ApiToken]:
        """List tokens, the newest first."""
        rows = await self._database.call(
            functions.LIST_API_TOKENS, namespace=self._namespace, after=after, limit=limit
        )
        return [_token(row) for row in rows]

    async def revoke(
        self, id: UUID, *, reason: str | None = None, actor: str | None = None
    ) -> bool:
        """Revoke a token; return False if it was revoked before.

        Servers may still accept a revoked token for up to 5 seconds.
        """
        check_words(reason=reason, actor=actor)
        rows = await self._database.call(
            functions.REVOKE_API_TOKEN,
            namespace=self._namespace,
            token_id=id,
            reason=reason,
            actor=actor,
        )
        return bool(rows[0]["outcome"] == "revoked")

    async def use(self, token: str) -> TokenUse | None:
        """Return the name, the namespace and the scopes of a token; None if the token is not valid
        in this client's namespace.
        """
        if not is_token(token):
            return None
        rows = await self._database.call(functions.USE_API_TOKEN, token_hash=token_hash(token))
        found = _use(rows[0]) if rows else None
        if found is not None and self._namespace not in (None, found.namespace):
            return None
        return found

    async def audit(self, *, before: int | None = None, limit: int = 100) -> Sequence[AuditEntry]:
        """List acts of operators, the newest first; `before` is the id of the last act of the
        previous page.
        """
        rows = await self._database.call(
            functions.LIST_AUDIT, namespace=self._namespace, before=before, limit=limit
        )
        return [_entry(row) for row in rows]
