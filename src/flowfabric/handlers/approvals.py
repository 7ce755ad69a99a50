"""Approvals in a handler: a question to several approvers, and their decision."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput, PayloadTooLarge
from flowfabric.core.execution import check_text
from flowfabric.core.signal import (
    MAX_SIGNAL_BYTES,
    ApprovalAnswer,
    SignalRecord,
    check_signal_name,
    read_comment,
)
from flowfabric.handlers.conditions import Condition
from flowfabric.handlers.waitpoints import link_of
from flowfabric.tasks.codec import codec_for, describe
from flowfabric.tasks.encoding_error import EncodingError

MAX_APPROVERS = 64
MAX_QUESTION_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """The request to one approver: the question, and a token for this approver only."""

    approver: str
    question: str
    details: Any
    token: str = field(repr=False)
    public_url: str | None

    @property
    def url(self) -> str:
        """The link to the page where the approver answers.

        It consists of FLOWFABRIC_PUBLIC_URL, `/w/` and the token.
        """
        return link_of(self.public_url, self.token)


Ask: TypeAlias = Callable[[ApprovalRequest], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Approval:
    """The decision about an approval. `bool(approval)` is True if it was granted."""

    is_approved: bool
    answers: tuple[ApprovalAnswer, ...]

    def __bool__(self) -> bool:
        return self.is_approved

    @property
    def approved_by(self) -> tuple[str, ...]:
        """The approvers who approved, in the order of their answers."""
        return tuple(one.approver for one in self.answers if one.is_approved)

    @property
    def denied_by(self) -> tuple[str, ...]:
        """The approvers who rejected, in the order of their answers."""
        return tuple(one.approver for one in self.answers if not one.is_approved)

    @property
    def comments(self) -> dict[str, str]:
        """The comments of the approvers, by approver. Approvers without a comment are omitted."""
        return {one.approver: one.comment for one in self.answers if one.comment is not None}


class ApprovalCondition(Condition[Approval]):
    """A condition that is satisfied by `need` approvals or by `deny` rejections."""

    depth = 1

    def __init__(self, approvers: Mapping[UUID, str], need: int, deny: int) -> None:
        self._approvers = approvers
        self._need = need
        self._deny = deny

    def to_json(self) -> dict[str, Any]:
        members = [{"waitpoint": str(id)} for id in self._approvers]
        return {"approve": self._need, "deny": self._deny, "of": members}

    def read(self, signals: Sequence[SignalRecord]) -> Approval:
        answers = tuple(
            ApprovalAnswer(
                self._approvers[one.waitpoint_id],
                one.name == "approved",
                one.accepted_at,
                one.source_identity,
                read_comment(one.payload),
            )
            for one in signals
            if one.waitpoint_id is not None
        )
        return Approval(sum(one.is_approved for one in answers) >= self._need, answers)


@dataclass(frozen=True, slots=True)
class OpenedApproval:
    """An open approval: the request to each approver, and the condition of the wait."""

    title: str
    requests: list[ApprovalRequest]
    condition: ApprovalCondition

    @classmethod
    def read(
        cls,
        stored: bytes | None,
        title: str,
        question: str,
        details: Any,
        public_url: str | None,
    ) -> OpenedApproval:
        """Build an OpenedApproval from `stored`, the recorded value of the step that opened it."""
        made = json.loads(stored or b"{}")
        requests = [
            ApprovalRequest(one["approver"], question, details, one["token"], public_url)
            for one in made["of"]
        ]
        approvers = {UUID(one["id"]): one["approver"] for one in made["of"]}
        return cls(title, requests, ApprovalCondition(approvers, made["need"], made["deny"]))


def check_approval(
    question: str, approvers: Sequence[str], need: int | None, deny: int | None
) -> tuple[list[str], int, int]:
    """Check the arguments of an approval, and fill in the defaults of `need` and `deny`.

    Return the approvers, how many of them must approve, and how many rejections deny the approval.
    """
    check_text("question", question, MAX_QUESTION_BYTES)
    if isinstance(approvers, str) or not isinstance(approvers, Sequence):
        raise InvalidInput(field="approvers", problem="must be a list of names")
    names = list(approvers)
    if not 1 <= len(names) <= MAX_APPROVERS:
        raise InvalidInput(field="approvers", problem=f"must be 1 to {MAX_APPROVERS} names")
    for name in names:
        check_signal_name(name)
    if len(set(names)) < len(names):
        raise InvalidInput(field="approvers", problem="must be different names")
    for what, number in (("need", need), ("deny", deny)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(names):
            raise InvalidInput(
                field=what, problem=f"must be from 1 to the number of approvers ({len(names)})"
            )
    needed = len(names) if need is None else need
    most = len(names) - needed + 1
    if deny is not None and deny > most:
        raise InvalidInput(
            field="deny",
            problem=f"must be at most {most}: otherwise all could answer without a decision",
        )
    # Without `deny`, the approval is denied as soon as it can no longer be granted.
    return names, needed, most if deny is None else deny


def encode_details(details: Any) -> bytes | None:
    """Encode the details for the approvers as JSON."""
    if details is None:
        return None
    try:
        stored = codec_for(type(details)).write_valid(details)
    except ValidationError as error:
        raise InvalidInput(field="details", problem=describe(error)) from None
    except PydanticSchemaGenerationError as error:
        raise InvalidInput(
            field="details", problem=f"cannot be sent as JSON: {error.message.splitlines()[0]}"
        ) from None
    except EncodingError as unfit:
        raise InvalidInput(field="details", problem=unfit.describe()) from None
    if len(stored) > MAX_SIGNAL_BYTES:
        raise PayloadTooLarge(
            field="details",
            problem=f"are {len(stored)} bytes; at most {MAX_SIGNAL_BYTES} (64 KiB) are allowed. "
            "Store large data elsewhere and give a reference",
        )
    return stored
