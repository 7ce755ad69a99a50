"""Signals: values that the outside world sends to an execution, and the waits that take them."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from flowfabric.core.errors import InvalidInput, PayloadTooLarge
from flowfabric.core.execution import check_text
from flowfabric.core.ids import ExecutionId, uuid7
from flowfabric.core.json_schema import find_problem

MAX_SIGNAL_BYTES = 65_536
MAX_SIGNAL_NAME_BYTES = 256
MAX_UNTAKEN_SIGNALS = 10_000
MAX_PARTITION = 32_767
MAX_COMMENT_BYTES = 4096
_MAX_TIMEOUT = timedelta(days=36_525)


@dataclass(slots=True, kw_only=True, eq=False)
class Signal:
    """One signal to send. If it is sent twice with the same id, it is stored once.

    A signal with the token of a waitpoint needs no name.
    """

    name: str | None = None
    token: str | None = field(default=None, repr=False)
    payload: bytes | None = field(default=None, repr=False)
    encoding: str | None = "json"
    # A second signal with the same name and this key is a duplicate.
    key: str | None = None
    # A note for people: who sends the signal.
    source_type: str | None = None
    source_identity: str | None = None
    id: UUID = field(default_factory=uuid7)
    # The declared type with which the value was checked.
    schema_id: int | None = field(default=None, repr=False)

    def check_type(self, schema_id: int, document: Any) -> None:
        """Check the value against `document`, the JSON Schema that the execution has declared.

        The error names the part of the value that does not fit.
        """
        what = f"signal {self.name!r}" if self.name else "the waitpoint"
        problem: str | None = None
        if self.payload is not None and self.encoding != "json":
            problem = f"is encoded as {self.encoding}, and JSON is expected"
        else:
            try:
                value = json.loads(self.payload or b"null")
            except ValueError as error:
                problem = f"is not JSON: {error}"
            except RecursionError:
                problem = "is nested too deeply"
            else:
                problem = find_problem(document, value)
        if problem is not None:
            raise InvalidInput(field="value", problem=f"does not fit {what}: {problem}")
        self.schema_id = schema_id

    def check(self) -> None:
        """Refuse invalid fields, as the engine would. The error names the field."""
        if self.name is not None or self.token is None:
            check_signal_name(self.name or "")
        if self.payload is not None and len(self.payload) > MAX_SIGNAL_BYTES:
            raise PayloadTooLarge(
                field="value",
                problem=f"of signal {self.name!r} is {len(self.payload)} bytes; at most "
                f"{MAX_SIGNAL_BYTES} (64 KiB) are allowed. Store large data elsewhere and send a "
                "reference",
            )
        if self.key is not None:
            check_text("key", self.key, MAX_SIGNAL_NAME_BYTES)
        if self.source_identity is not None:
            check_text("by", self.source_identity, MAX_SIGNAL_NAME_BYTES)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The answer to a signal: its id, and whether it is a duplicate of an earlier signal.

    `effect` is `woken` (the signal woke the execution), `buffered` (the signal is kept for a wait)
    or `stored` (the signal is not noticed yet: the execution was busy, or the signal is part of an
    open transaction).
    """

    id: UUID
    is_duplicate: bool = False
    effect: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Wait:
    """A wait of a handler: a step of the journal, with the condition that the handler waits for."""

    name: str
    occurrence: int
    position: int
    is_sequential: bool
    condition: dict[str, Any]
    timeout: timedelta | None = None
    follows: int | None = None
    code_version: str | None = None
    # True: take the answer if there is one. False: only look whether there is one.
    take: bool = False

    def check(self) -> None:
        if self.timeout is not None and not timedelta(0) <= self.timeout <= _MAX_TIMEOUT:
            raise InvalidInput(field="timeout", problem="must be between 0 and a hundred years")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAnswer:
    """What the engine says about a wait.

    `word` is `taken` (the handler has taken the answer), `ready` (signals are ready to be taken),
    `timed_out` (the timeout is over) or `open` (there is no answer yet).
    """

    word: str
    recorded_at: datetime
    until_at: datetime | None
    ready_at: datetime | None
    # What ended a taken wait: `signals`, `timeout` or `operator`.
    taken_as: str | None
    value: bytes | None = field(repr=False)
    attempt: int
    # The signals of a taken wait.
    signal_ids: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """A signal that an execution has received."""

    id: UUID
    name: str
    category: str | None
    source_type: str
    source_identity: str | None
    correlation_id: str | None
    payload: bytes | None = field(repr=False)
    payload_encoding: str | None
    accepted_at: datetime
    noticed_at: datetime | None = None
    effect: str | None = None
    taken_at: datetime | None = None
    wait_name: str | None = None
    wait_occurrence: int | None = None
    # The waitpoint whose token was used; None for a signal by name.
    waitpoint_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSignal:
    """A signal without its value, as the feed of signals lists it."""

    id: UUID
    execution_id: ExecutionId
    name: str
    waitpoint_id: UUID | None
    category: str | None
    source_type: str
    source_identity: str | None
    accepted_at: datetime
    effect: str | None
    namespace: str
    instance_tag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """A suspended execution: when and why it was suspended, what it waits for, and until when.

    `continuation` is a text that the holder of the lease stored when it suspended the execution.
    """

    id: ExecutionId
    suspended_at: datetime
    reason_code: str
    timeout_at: datetime | None
    on_timeout: str
    conditions: list[dict[str, Any]]
    continuation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWaitpoint:
    """An open waitpoint, without its token.

    `required_signal_names` lists the names of the signals that the waitpoint takes. The list is
    empty if the waitpoint takes signals of every name. `token_fingerprint` is the beginning of the
    digest of the token.
    """

    waitpoint_id: UUID
    key: str
    state: str
    kid: str
    created_at: datetime
    activated_at: datetime | None
    expires_at: datetime | None
    signal_count: int
    required_signal_names: list[str]
    token_fingerprint: str | None


class WaitpointState(StrEnum):
    """The state of a waitpoint, as the holder of its token sees it."""

    OPEN = "open"
    ANSWERED = "answered"
    CLOSED = "closed"
    """Its answer was taken, its time is over, or its execution has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedWaitpoint:
    """What the holder of a token sees: a question with details, or a request for a value.

    `decision` is the answer that was given to a question: approved or rejected. `schema` is the
    JSON Schema of the value, or None if no type is declared.
    """

    state: WaitpointState
    key: str
    is_approval: bool
    question: str | None
    details: Any
    decision: str | None
    answered_at: datetime | None
    expires_at: datetime | None
    schema: Any


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer of one approver.

    `by` names who answered: a principal, or any name that the sender gave.
    """

    approver: str
    is_approved: bool
    at: datetime
    by: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalInfo:
    """A question to several approvers, and their answers so far."""

    id: ExecutionId
    approval_id: UUID
    question: str
    details: Any
    need: int
    deny: int
    created_at: datetime
    is_open: bool
    approvers: tuple[str, ...]
    answers: tuple[ApprovalAnswer, ...]

    @property
    def approved_count(self) -> int:
        return sum(one.is_approved for one in self.answers)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The approvers who have not answered."""
        answered = {one.approver for one in self.answers}
        return tuple(one for one in self.approvers if one not in answered)


def decision_name(is_approved: bool) -> str:
    """Return the name of the signal that answers an approval."""
    return "approved" if is_approved else "rejected"


def encode_comment(comment: str | None) -> bytes | None:
    """Return a comment as the value of the signal that answers an approval."""
    if comment is None:
        return None
    check_text("comment", comment, MAX_COMMENT_BYTES)
    return json.dumps({"comment": comment}).encode()


def read_comment(payload: bytes | None) -> str | None:
    """Return the comment of an answer, or None if the answer has no comment."""
    try:
        comment = json.loads(payload or b"null")["comment"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # the sender of a token may write anything there
    return comment if isinstance(comment, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HmacKey:
    """An hmac key. The record does not contain the secret of the key.

    The current key (`is_active`) signs new tokens and has no `expires_at`. An old key only verifies
    tokens, until `expires_at`.
    """

    kid: str
    is_active: bool
    created_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rotation:
    """The answer to a rotation of the hmac key: the new key and the previous key."""

    outcome: str
    kid: str
    previous_kid: str | None
    deleted: int


TOKEN_PREFIX = "ffw_"
_TOKEN = re.compile(r"ffw_[A-Za-z0-9_-]{92,144}")


def token_address(token: str) -> ExecutionId:
    """Return the execution that a token names. The engine verifies the token.

    If the text cannot be a token, return the id of an execution that does not exist. The engine
    then refuses the text like a wrong token.
    """
    nowhere = ExecutionId.of(0, UUID(int=0))
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        return nowhere
    body = token.removeprefix(TOKEN_PREFIX)
    try:
        data = b64decode(body + "=" * (-len(body) % 4), altchars=b"-_")
    except ValueError:
        return nowhere
    size = data[1]
    if len(data) != 68 + size:
        return nowhere
    partition = int.from_bytes(data[2 + size : 4 + size])
    if partition > MAX_PARTITION:
        return nowhere
    return ExecutionId.of(partition, UUID(bytes=data[4 + size : 20 + size]))


@dataclass(frozen=True, slots=True)
class PendingWait:
    """What a suspended execution waits for: a condition, and until when."""

    condition: dict[str, Any]
    until: datetime | None = None

    @property
    def signal(self) -> str | None:
        """The name of the signal if the condition is a single signal, else None."""
        return self.condition.get("signal")


def check_signal_name(name: str) -> None:
    check_text("name", name, MAX_SIGNAL_NAME_BYTES)
    if any(ch < " " or ch == "\x7f" for ch in name):
        raise InvalidInput(field="name", problem="must not contain control characters")
