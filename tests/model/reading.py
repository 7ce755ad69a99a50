"""What a call answered, in the words of the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from support.factories import claimed_leases
from support.model import Answer


def order(event: dict[str, Any]) -> tuple[str, int]:
    return str(event["execution_id"]), event["version"]


def _facts(detail: str | None) -> dict[str, Any]:
    told = json.loads(detail) if detail else {}
    return {name: told[name] for name in ("field", "wakes_pending") if name in told}


def submitted(rows: list[asyncpg.Record], size: int) -> list[Answer]:
    answers = [Answer("created")] * size
    for row in rows:
        facts = _facts(row["detail"])
        if row["outcome"] == "duplicate":
            facts = {"id": row["execution_id"]}
        answers[row["item"] - 1] = Answer(row["outcome"], facts)
    return answers


_LEASE = (
    "execution_id",
    "claim_kind",
    "epoch",
    "attempt_index",
    "attempt_id",
    "attempt_type",
    "lease_expires_at",
    "attempt_deadline_at",
    "deadline_at",
    "retry_count",
    "replay_count",
    "crash_count",
    "generation",
)


def leases(rows: list[asyncpg.Record]) -> list[Answer]:
    return [Answer("leased", {name: row[name] for name in _LEASE}) for row in rows]


def claimed(rows: list[asyncpg.Record], claim_id: UUID) -> list[Answer]:
    """The leases of a claim, which answers with arrays."""
    found = claimed_leases(rows[0] if rows else None, claim_id)
    return [Answer("leased", {name: getattr(one, name) for name in _LEASE}) for one in found]


def lease(rows: list[asyncpg.Record]) -> Answer:
    (answer,) = leases(rows)
    return answer


def reclaimed(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] != "reclaimed":
        return Answer(row["outcome"])
    return Answer("reclaimed", leases(rows)[0].facts)


def outcomes(rows: list[asyncpg.Record], size: int, silent: str) -> list[Answer]:
    answers = [Answer(silent)] * size
    for row in rows:
        facts = _facts(row["detail"])
        if row["outcome"] in ("failed", "retry_scheduled"):
            facts |= {name: row[name] for name in ("delayed_until", "next_attempt_index")}
        answers[row["item"] - 1] = Answer(row["outcome"], facts)
    return answers


def recorded(rows: list[asyncpg.Record]) -> list[Answer]:
    answers = []
    for n, row in enumerate(rows, 1):
        assert row["item"] == n
        facts = _facts(row["detail"])
        if row["outcome"] in ("recorded", "exists"):
            facts = {
                name: row[name]
                for name in ("recorded_at", "until_at", "attempt_index", "value", "encoding")
            }
        answers.append(Answer(row["outcome"], facts))
    return answers


def appended(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] != "appended":
        return Answer(row["outcome"], _facts(row["detail"]))
    return Answer("appended", {name: row[name] for name in ("last_no", "frame_count")})


def asked(rows: list[asyncpg.Record]) -> list[Answer]:
    """The answers of waits."""
    names = (
        "recorded_at", "until_at", "ready_at", "taken_as", "signal_ids", "value", "attempt_index",
    )  # fmt: skip
    return [
        Answer(
            row["outcome"],
            {name: row[name] for name in names}
            if row["outcome"] in ("taken", "ready", "timed_out", "open")
            else _facts(row["detail"]),
        )
        for row in rows
    ]


def suspended(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] == "suspended":
        return Answer("suspended", {"timeout_at": row["timeout_at"]})
    if row["outcome"] == "already_satisfied":
        return Answer("already_satisfied", {"by": json.loads(row["detail"])["by"]})
    return Answer(row["outcome"], _facts(row["detail"]))


def delivered(rows: list[asyncpg.Record]) -> list[Answer]:
    return [Answer(row["outcome"], {"effect": row["effect"]}) for row in rows]


def single(rows: list[asyncpg.Record], names: Sequence[str]) -> Answer:
    (row,) = rows
    facts = _facts(row["detail"])
    if not facts and row["outcome"] in (
        "delayed", "waiting", "continued", "granted", "not_reclaimable", "reclaim_cap_exceeded"
    ):  # fmt: skip
        facts = {name: row[name] for name in names}
    return Answer(row["outcome"], facts)


def shown(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    facts = {"public_state": row["public_state"], "version": row["version"]}
    if row["outcome"] == "already_satisfied":
        facts["reason"] = json.loads(row["detail"])["reason"]
    elif row["outcome"] == "cancelled":
        facts |= _facts(row["detail"])
    return Answer(row["outcome"], facts)


def added(answer: tuple[str, int, int]) -> Answer:
    return Answer(answer[0], {"counts": answer[1:]})


def staged(answer: tuple[str, int]) -> Answer:
    return Answer(answer[0], {"revision": answer[1]})


def applied(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] not in ("applied", "already_applied"):
        return Answer(row["outcome"], _facts(row["detail"]))
    return Answer(
        row["outcome"],
        {"open": row["unsatisfied"], "state": row["public_state"], **_facts(row["detail"])},
    )


def header(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    return cancelled((row["outcome"], row["policy"], row["reason"], row["open_count"]))


def cancelled(answer: tuple[str, str | None, str | None, int]) -> Answer:
    word, policy, reason, left = answer
    return Answer(word, {"policy": policy, "reason": reason, "open": left})


def ended(answer: tuple[int, int, int, bool]) -> Answer:
    return Answer(
        "handled" if answer[0] else "nothing", {"counts": answer[:3], "is_pending": answer[3]}
    )


def lane(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    return Answer(row["outcome"], {name: row[name] for name in ("state", "resumes_at")})
