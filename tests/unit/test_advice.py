"""What helps an execution: every reason has advice, or is known to need none."""

from __future__ import annotations

import pytest

from flowfabric.core.ids import ExecutionId, uuid7
from flowfabric.core.why import SENTENCES, Dimension, Why
from flowfabric.dashboard.advice import ADVICE, advice_of

# Reasons that are over, or that pass by themselves within seconds.
WITHOUT = {
    *("completed", "trimmed", "deadline_due", "promotion_due", "flow_being_cancelled", "granted"),
    *("lane_draining", "lane_pause_over", "replayed", "deadline_ahead"),
}


def test_every_reason_has_advice_or_needs_none():
    assert set(SENTENCES) - set(ADVICE) == WITHOUT
    assert set(ADVICE) <= set(SENTENCES)


@pytest.mark.parametrize(
    ("code", "evidence", "words"),
    [
        ("suspended", {"waits": [{"question": "Ship?"}]}, "Press Answer"),
        ("suspended", {"waits": [{"condition": {"signal": "go"}}]}, "Send what it waits for"),
        ("suspended", {"runs": 2}, "Open the executions that it waits for"),
        ("suspended", {}, "Give a reason, then resume"),
        ("waits_for_quota", {"quota": "gpu", "concurrency": 1}, "open the quota"),
        ("waits_for_quota", {"quota": "api", "opens_at": "x"}, "as soon as its rate has room"),
        ("waits_for_quota", {"quota": "ff:lane", "key": "mail"}, "open the lane"),
        ("waits_for_budget", {"next_reset_at": "x"}, "or wait for the reset"),
        ("lane_not_served", {"lane": "mail"}, "--lanes mail to start"),
        ("lane_not_served", {"lane": "x;$(id)`id`"}, "--lanes 'x;$(id)`id`' to start"),
        ("completed", {}, None),
    ],
)
def test_advice_fits_the_facts(code, evidence, words):
    why = Why(ExecutionId.of(0, uuid7()), Dimension.END, code, evidence, None)
    said = advice_of(why)
    assert said is None if words is None else words in str(said)
