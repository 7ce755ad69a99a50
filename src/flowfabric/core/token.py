"""Tokens of the HTTP server, their scopes, and the record of what operators did."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from flowfabric.core.errors import InvalidInput

PREFIX = "ffp_"
# Lists show `ffp_` and this many further characters of a token.
SHOWN = 6
_FORM = re.compile(r"ffp_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token allows. Every scope includes `read`; `admin` includes all others."""

    READ = "read"
    SUBMIT = "submit"
    SIGNAL = "signal"
    WORK = "work"
    OPERATE = "operate"
    ADMIN = "admin"


def parse_scopes(words: Iterable[str]) -> tuple[Scope, ...]:
    """Parse scopes. Raise InvalidInput if a scope is unknown, or if no scope is given."""
    found = []
    for word in words:
        try:
            found.append(Scope(word.strip().lower()))
        except ValueError as error:
            raise InvalidInput(
                field="scope", problem=f"{word[:40]!r} is not one of {', '.join(Scope)}"
            ) from error
    if not found:
        raise InvalidInput(field="scope", problem=f"must be some of {', '.join(Scope)}")
    return tuple(dict.fromkeys(found))


def allowed_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return the given scopes and all scopes that they include."""
    given = frozenset(scopes)
    return frozenset(Scope) if Scope.ADMIN in given else given | {Scope.READ}


def mint_token() -> str:
    """Return a new token: `ffp_` and 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _FORM.fullmatch(text) is not None


def token_hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def shown_prefix(token: str) -> str:
    """Return the beginning of a token. Lists show this instead of the token."""
    return token[: len(PREFIX) + SHOWN]


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made. No other record contains the token itself."""

    id: UUID
    token: str = field(repr=False)
    namespace: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What the database knows of a token of the HTTP server. The token itself is not stored."""

    token_id: UUID
    prefix: str
    name: str
    scopes: tuple[Scope, ...]
    namespace: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    revoked_reason: str | None


@dataclass(frozen=True, slots=True)
class TokenUse:
    """What the server knows of the token in a request: whose it is, and what it allows."""

    token_id: UUID
    name: str
    prefix: str
    scopes: frozenset[Scope]
    namespace: str
    # Seconds until the token expires; None if it never does.
    expires_in: float | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act of an operator or an administrator."""

    audit_id: int
    occurred_at: datetime
    namespace: str | None
    actor: str
    act: str
    subject: str | None
    reason: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
