"""Records of subscriptions, of their filters and of their leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_text

MAX_SUBSCRIPTION_NAME_BYTES = 256
MIN_LEASE, MAX_LEASE = timedelta(seconds=1), timedelta(hours=1)
DEFAULT_KEEP = timedelta(days=7)
"""How much longer events are kept if a subscription has not read them."""


class OnExpiry(StrEnum):
    """What a consumer does if some events after its position were trimmed."""

    STOP = "stop"
    """Raise CursorExpired."""
    RESUME = "resume"
    """Continue with the events that are left; some of them may come twice."""


class SubscriptionState(StrEnum):
    """The state of a subscription."""

    CONSUMED = "consumed"
    """A consumer reads it."""
    IDLE = "idle"
    """No consumer reads it now."""
    EXPIRED = "expired"
    """Events after its position were trimmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """A subscription: its filters, its consumer, and how far it is behind.

    `behind_at` is the time of the first event of its namespace after its position, or None if there
    is no later event. `waiting` counts the events of its namespace after its position, up to 1 000
    in each partition. It also counts events that the filters exclude. If a partition could not be
    reached, its events are not counted.
    """

    namespace: str
    name: str
    kinds: Sequence[str] | None
    tasks: Sequence[str] | None
    lanes: Sequence[str] | None
    instance_tags: Sequence[str] | None
    on_expiry: OnExpiry
    keep: timedelta
    holder_name: str | None
    lease_expires_at: datetime | None
    epoch: int
    acked_count: int
    acked_at: datetime | None
    created_at: datetime
    changed_at: datetime | None
    changed_by: str | None
    reason: str | None
    behind_at: datetime | None = None
    waiting: int = 0
    is_expired: bool = False
    state: SubscriptionState = SubscriptionState.IDLE

    def judged(self) -> SubscriptionInfo:
        """Return this record with the state that follows from its other fields."""
        if self.is_expired:
            return replace(self, state=SubscriptionState.EXPIRED)
        is_idle = self.holder_name is None
        return replace(
            self, state=SubscriptionState.IDLE if is_idle else SubscriptionState.CONSUMED
        )


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a subscription gets. A field that is None does not filter.

    The database stores all fields except `feed`.
    """

    kinds: list[str] | None = None
    tasks: list[str] | None = None
    lanes: list[str] | None = None
    instance_tags: list[str] | None = None
    feed: str | None = None

    def filters(self) -> dict[str, Any]:
        """Return the filters as arguments for a function that reads events."""
        return {
            "kinds": self.kinds,
            "tasks": self.tasks,
            "lanes": self.lanes,
            "instance_tags": self.instance_tags,
            "feed": self.feed,
        }


@dataclass(frozen=True, slots=True)
class SubscriptionLease:
    """The answer to a consumer that wants to lease a subscription.

    `outcome` is `leased`, `busy` (another consumer has the lease) or `unknown` (there is no such
    subscription). `cursor_text` is the position; only `leased` has one.
    """

    outcome: str
    epoch: int
    cursor_text: str
    holder_name: str
    lease_expires_at: datetime
    is_new: bool


def check_subscription_name(name: str) -> None:
    check_text("name", name, MAX_SUBSCRIPTION_NAME_BYTES)
    if any(ch <= " " or ch == "\x7f" for ch in name):
        raise InvalidInput(field="name", problem="must not contain blanks or control characters")


def check_on_expiry(word: OnExpiry | str) -> OnExpiry:
    try:
        return OnExpiry(word)
    except ValueError as error:
        raise InvalidInput(
            field="on_expiry", problem=f"must be one of: {', '.join(OnExpiry)}"
        ) from error
