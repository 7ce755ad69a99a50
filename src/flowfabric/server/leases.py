"""Lease tokens: the fence of a claimed execution, signed and bound to the caller that claimed it.

The server stores nothing: the key is in the database, and the token contains everything else. The
server refuses a token of another caller or namespace, and a token with one changed bit.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from uuid import UUID

from flowfabric.core.errors import StaleLease
from flowfabric.core.execution import Claimed
from flowfabric.server.principals import Principal

PREFIX = "ffl_"
_VERSION = 1
_FORM = struct.Struct(">BH16s16sq16s")
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def sign(key: bytes, principal: Principal, claimed: Claimed) -> str:
    """Return the token of a lease for the caller that claimed it."""
    body = _FORM.pack(
        _VERSION,
        claimed.partition_key,
        claimed.execution_id.bytes,
        claimed.lease_id.bytes,
        claimed.epoch,
        claimed.attempt_id.bytes,
    )
    text = urlsafe_b64encode(body + _digest(key, principal, body)).decode().rstrip("=")
    return PREFIX + text


def verify(key: bytes, principal: Principal, token: str) -> Claimed:
    """Return the lease that a token contains. Every invalid token raises the same StaleLease."""
    text = token.removeprefix(PREFIX)
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    body, digest = data[: _FORM.size], data[_FORM.size :]
    is_ours = len(data) == _FORM.size + 32 and token == PREFIX + text
    expected = _digest(key, principal, body)
    canonical = urlsafe_b64encode(data).decode().rstrip("=") == text
    if not (hmac.compare_digest(digest, expected) and is_ours and canonical):
        raise StaleLease("This lease was not given to this caller; claim again.")
    _, partition, execution, lease, epoch, attempt = _FORM.unpack(body)
    return Claimed(
        execution_id=UUID(bytes=execution),
        namespace=principal.namespace,
        lane="",
        task="",
        claim_kind="",
        rank=0,
        order_at=_NEVER,
        epoch=epoch,
        attempt=0,
        attempt_id=UUID(bytes=attempt),
        attempt_type="",
        lease_expires_at=_NEVER,
        attempt_deadline_at=None,
        deadline_at=None,
        retry_count=0,
        payload_encoding=None,
        payload=None,
        replay_count=0,
        trace_context=None,
        crash_count=0,
        generation=0,
        partition_key=partition,
        lease_id=UUID(bytes=lease),
    )


def claim_id_of(key: bytes, principal: Principal, given: UUID) -> UUID:
    """Return the id under which the engine stores a claim.

    If two claims have the same id, the engine answers the second claim with the leases of the
    first. Therefore the id is computed from the given id and the caller: no caller can get the
    leases of another caller.
    """
    return UUID(bytes=_digest(key, principal, b"claim" + given.bytes)[:16], version=4)


def _digest(key: bytes, principal: Principal, body: bytes) -> bytes:
    whose = (principal.token_id or principal.name).encode()
    space = principal.namespace.encode()
    sizes = struct.pack(">II", len(whose), len(space))
    return hmac.new(key, b"lease" + sizes + whose + space + body, hashlib.sha256).digest()
