"""Enums of the database, enums of Python, the table of transitions and the headers agree."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from flowfabric.core import states
from support.cases import for_each

from .sources import SqlFile, helpers, public_functions, sql_files

# Words that never leave the engine.
INTERNAL = {"cause", "lease_end", "lease_start"}

LIBRARY = sql_files("shared", "functions")
MOVERS = [file for file in LIBRARY if re.search(r"(?<!\.)\bcause\s*=", file.code)]


# Helpers that are told the cause, and which of the quoted words of a call it is.
GENERIC_MOVERS = {
    "_end_executions": 1,
    "_interrupt_executions": 0,
    "_make_eligible": 0,
    "_wake_suspended": 0,
}


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


ENUMS = {
    snake(name): [str(member) for member in value]
    for name, value in vars(states).items()
    if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
}


async def pg_enums(connection) -> dict[str, list[str]]:
    rows = await connection.fetch(
        "select t.typname, array_agg(e.enumlabel::text order by e.enumsortorder) as labels "
        "from pg_type t join pg_enum e on e.enumtypid = t.oid "
        "where t.typnamespace = 'ff'::regnamespace group by t.typname"
    )
    return {row["typname"]: row["labels"] for row in rows}


async def test_the_enums_are_the_same(catalogue):
    stored = await pg_enums(catalogue)
    assert {name: labels for name, labels in stored.items() if name not in INTERNAL} == ENUMS
    assert stored.keys() >= INTERNAL


async def test_the_public_state_can_be_every_label(catalogue):
    """The generated column names each label that it can produce; `resumable` is never produced."""
    expression = await catalogue.fetchval(
        "select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_attribute a "
        "on a.attrelid = d.adrelid and a.attnum = d.adnum "
        "where d.adrelid = 'ff.execution'::regclass and a.attname = 'public_state'"
    )
    produced = set(re.findall(r"'(\w+)'::ff\.public_state", expression))
    assert produced == set(states.PublicState) - {states.PublicState.RESUMABLE}


async def transitions(connection):
    return await connection.fetch(
        "select number, cause::text, event_kind::text, from_phase::text, to_phase::text, "
        "from_attempt_state::text, to_attempt_state::text, to_ownership::text, "
        "to_eligibility::text from ff.transition"
    )


async def test_the_numbers_are_those_of_the_state_model(catalogue):
    numbers = {row["number"] for row in await transitions(catalogue)}
    assert numbers == {f"T{n}" for n in range(1, 33)}


async def test_every_cause_and_every_kind_has_a_move(catalogue):
    rows = await transitions(catalogue)
    stored = await pg_enums(catalogue)
    assert {row["cause"] for row in rows} == set(stored["cause"])
    # these belong to a flow and to a webhook, not to a move of an execution
    kinds = set(stored["event_kind"]) - {"flow_cancel_requested", "webhook_disabled"}
    assert {row["event_kind"] for row in rows if row["event_kind"]} == kinds


async def test_quiet_moves_are_those_of_the_decision(catalogue):
    quiet = {row["number"] for row in await transitions(catalogue) if row["event_kind"] is None}
    assert quiet == {"T3", "T4", "T6", "T7", "T8"}


async def test_nothing_but_replay_leaves_the_end(catalogue):
    rows = await transitions(catalogue)
    assert {row["cause"] for row in rows if row["from_phase"] == "terminal"} == {"replay"}
    assert not [row for row in rows if "submitted" in (row["from_phase"], row["to_phase"])]


@for_each("file", LIBRARY, name=lambda file: file.id)
async def test_a_number_in_a_header_exists(catalogue, file: SqlFile):
    numbers = {row["number"] for row in await transitions(catalogue)}
    assert file.transition_numbers <= numbers


def causes_written(file: SqlFile) -> set[str]:
    """The causes that a file's updates and inserts set, as far as they are literals."""
    found: set[str] = set()
    # an update: from `cause =` to the next assignment
    for match in re.finditer(r"\bcause = (.*?),\n\s*\w+ = ", file.statements, re.DOTALL):
        expression = re.sub(r"when e\.\w+ = '\w+'", "when", match[1])
        found |= set(re.findall(r"'(\w+)'", expression))
    if re.search(r"insert into ff\.execution \(", file.statements):
        found.add("submit")
    # a call of a helper that moves rows for whatever cause it is told
    for match in re.finditer(r"(?:perform|:=) ff\.(_\w+)\((.*?)\);", file.statements, re.DOTALL):
        if match[1] in GENERIC_MOVERS:
            found.add(re.findall(r"'(\w+)'", match[2])[GENERIC_MOVERS[match[1]]])
    return found


@pytest.mark.parametrize(
    "file", [file for file in MOVERS if file.name not in GENERIC_MOVERS], ids=lambda file: file.id
)
async def test_the_causes_of_a_function_are_legal_moves_of_its_header(catalogue, file: SqlFile):
    rows = await transitions(catalogue)
    causes = causes_written(file)
    assert causes, "no cause was recognised"
    called = [one for one in LIBRARY if one.name in GENERIC_MOVERS and f"{one.name}(" in file.code]
    written = "".join(one.statements for one in (file, *called))
    for cause in causes:
        numbers = {row["number"] for row in rows if row["cause"] == cause}
        assert numbers, f"{cause} is in no transition"
        assert numbers & file.transition_numbers, f"the header does not name {cause} ({numbers})"
        kinds = {row["event_kind"] for row in rows if row["cause"] == cause}
        assert None in kinds or any(f"'{kind}'" in written for kind in kinds), (
            f"{cause} writes none of {kinds}"
        )


def test_all_movers_are_recognised():
    assert {file.name for file in MOVERS} == {
        *GENERIC_MOVERS,
        "_claim_fresh",
        "_escalate_suspensions",
        "_expire_leases",
        "_lease_executions",
        "_park_in_lines",
        "_pause_members",
        "_resolve_edges",
        "_write_replays",
        "apply_dependency_to_child",
        "_wake_waiters",
        "_warn_of_budget",
        "block_execution_for_admission",
        "change_priority",
        "complete_executions",
        "_settle_overdue_executions",
        "fail_executions",
        "promote_delayed",
        "revoke_lease",
    }


def helpers_of(file: SqlFile) -> set[SqlFile]:
    """The private functions that a function calls, directly or through others."""
    by_name = {helper.name: helper for helper in helpers()}
    found: set[SqlFile] = set()
    queue = [file]
    while queue:
        for name in re.findall(r"\bff\.(_\w+)\(", queue.pop().code):
            helper = by_name[name]
            # Every end submits hooks: that is said of hooks, not of every function that ends.
            if helper not in found and helper != file and name != "_submit_hooks":
                found.add(helper)
                queue.append(helper)
    return found


@for_each("file", public_functions(), name=lambda file: file.id)
async def test_the_moves_of_a_header_are_made_and_all_are_named(catalogue, file: SqlFile):
    """A public function's T-numbers are those its own and its helpers' causes stand for."""
    rows = await transitions(catalogue)
    named = set(re.findall(r"\bT\d+\b", file.fields["Moves"]))
    made: set[str] = set()
    for part in (file, *helpers_of(file)):
        # What is leased is what the caller found open: a grant is for one of the moves only.
        # A refused grant rolls back: it puts nobody into line.
        narrowed = part.name in ("_lease_executions", "_park_in_lines") and file.room == "grant"
        for cause in causes_written(part):
            numbers = {row["number"] for row in rows if row["cause"] == cause}
            assert narrowed or numbers & named, f"the header does not name {cause} ({numbers})"
            made |= numbers
    assert named <= made
