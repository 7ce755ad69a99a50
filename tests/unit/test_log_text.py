"""How a log line says that a lease was lost."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from flowfabric.core.errors import FlowFabricError
from flowfabric.worker.log_text import loss_text


@pytest.mark.parametrize(
    ("outcome", "facts", "text"),
    [
        ("not_active", {"timeout_ms": 2000.0}, "timed out after 2 s, no retry is left"),
        (
            "not_active",
            {
                "timeout_ms": 2000,
                "delayed_until": datetime(2026, 1, 1, 8, 5).astimezone().isoformat(),
            },
            "timed out after 2 s, retry at 08:05:00",
        ),
        (
            "not_active",
            {"reason": "deadline_passed", "ended_by": "expired"},
            "its deadline passed, the execution expired",
        ),
        (
            "lease_expired",
            {"not_renewed_for": timedelta(seconds=30)},
            "lease expired, not renewed for 30 s",
        ),
        ("not_active", {"ended_by": "cancelled", "actor": "ada"}, "cancelled by ada"),
        (
            "not_active",
            {"ended_by": "cancelled", "source": "operator_override", "because": "wrong order"},
            "cancelled by an operator: wrong order",
        ),
        (
            "not_active",
            {"ended_by": "cancelled", "actor": "a\x9bda", "because": "no\n08:00:00 \u202eerror"},
            "cancelled by a?da: no 08:00:00 ?error",
        ),
        (
            "not_active",
            {"ended_by": "cancelled", "source": "parent"},
            "cancelled by the end of its parent",
        ),
        (
            "not_active",
            {"ended_by": "cancelled", "source": "flow_cascade"},
            "cancelled by its flow",
        ),
        ("lease_revoked", {"ended_by": "lease_revoked", "actor": "ada"}, "revoked by ada"),
        ("lease_expired", {}, "lease expired"),
        (
            "stale_lease",
            {"ended_by": "lease_expired"},
            "lease expired, another worker has the execution",
        ),
        (
            "stale_lease",
            {"ended_by": "retry_scheduled", "timeout_ms": 500},
            "timed out after 0.5 s, another worker has the execution",
        ),
        ("not_found", {}, "the execution was deleted"),
        ("stale_lease", {}, "This lease is not the current lease of the execution"),
    ],
)
def test_a_lost_lease_is_explained_in_a_few_words(outcome, facts, text):
    told = loss_text(FlowFabricError.from_engine(outcome, facts))
    assert told == text or (not facts and told.startswith(text))
