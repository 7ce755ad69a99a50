"""Every function takes the statement shapes that Citus needs (sql/README.md), in its distributed
form. The rules are in shapes.py; here is a statement for each that breaks it."""

from __future__ import annotations

import re

import pytest

from flowfabric.db.citus import FORCED_FUNCTIONS
from support.cases import for_each

from .shapes import (
    Library,
    body_of,
    empty_tests,
    immutable_functions,
    mixed_reads,
    problems,
    querying_functions,
    reached,
    rowless_laterals,
    statements,
    tokens,
)
from .sources import SqlFile, distributed_forms, sql_files
from .tables import ACROSS, PARTITIONED

FUNCTIONS = tuple(SqlFile(file.path, is_distributed=True) for file in distributed_forms())
LIBRARY = Library(
    partitioned=frozenset(PARTITIONED),
    querying=querying_functions({file.name: body_of(file.text) for file in FUNCTIONS}),
    immutable=immutable_functions(file.text for file in FUNCTIONS),
)


@for_each("file", FUNCTIONS, name=lambda file: file.id)
def test_a_function_takes_the_statement_shapes(file):
    found = problems(file.text, LIBRARY)
    if file.name in ACROSS:
        # Over all partitions: a partitioned table joins ff.partition by its key.
        found = [one for one in found if not one.startswith("1: ")]
        found += empty_tests(file.text, LIBRARY)
        found += rowless_laterals(file.text, LIBRARY)
    assert found == []


BODIES = {file.name: body_of(file.text) for file in FUNCTIONS}
FORCED = reached(FORCED_FUNCTIONS, BODIES)


@for_each("file", [one for one in FUNCTIONS if one.name in FORCED], name=lambda file: file.id)
def test_a_function_that_is_always_delegated_reads_partitioned_tables_alone(file):
    assert list(mixed_reads(file.text, LIBRARY)) == []


@for_each("file", sql_files("shared", "functions"), name=lambda file: file.id)
def test_the_partition_of_a_row_is_always_the_parameter(file):
    """`pk` becomes p_partition_key when distributed, so it must be the same before."""
    for match in re.finditer(r"(\w+(?:\.\w+)?) as pk\b", file.code):
        assert match[1] == "p_partition_key", match[0]


# The rules themselves

PLAIN = "update ff.execution e set rank = 1 where e.partition_key = p_partition_key"
EVENT = "insert into ff.event (partition_key, kind) select p_partition_key, 'held'"
BROKEN = {
    "1": (
        PLAIN.replace("p_partition_key", "i.pk"),
        PLAIN.replace("p_partition_key", "0"),
        "select from ff.edge g join ff.flow f on f.partition_key = g.partition_key",
        "select from ff.flow f where p_partition_key = partition_key",
        "insert into ff.event (partition_key, kind) select i.pk, 'held' from item i",
        "insert into ff.event (partition_key, kind) values (v_row.partition_key, 'held')",
    ),
    "2": (
        PLAIN.replace("rank = 1", "due_at = e.transitioned_at + p_ttl"),
        PLAIN.replace("rank = 1", "due_at = greatest(v_now, e.transitioned_at) + p_ttl"),
        PLAIN.replace("rank = 1", "due_at = v_now + e.retention"),
        PLAIN.replace("rank = 1", "due_at = v_now + case when true then e.retention end"),
        PLAIN.replace("rank = 1", "due_at = case when true then e.due_at end + p_ttl"),
        PLAIN.replace("rank = 1", "due_at = e.due_at - interval '1 second'"),
        f"with c as ({PLAIN.replace('rank = 1', 'due_at = e.due_at + p_ttl')}) {EVENT} from c",
        EVENT + " on conflict do update set occurred_at = excluded.occurred_at + p_ttl",
        EVENT + " on conflict do update set occurred_at = v_at + p_ttl",
    ),
    "3": (
        PLAIN.replace("rank = 1", "rank = case e.phase when 'active' then 1 end"),
        PLAIN.replace("rank = 1", "rank = coalesce(p_phase::ff.phase, e.phase)"),
        "update ff.lane l set state = coalesce(p_state::ff.lane_state, l.state)",
        "update ff.lane l set changed_at = ff._count(l.state)",
        "update ff.lane l set changed_by = coalesce(p_actor, session_user)",
    ),
    "4": (
        f"with c as ({PLAIN} returning e.version), i as ({EVENT} from c) select version from c",
        "with i as (insert into ff.step (partition_key) values (p_partition_key)) select 1",
    ),
    "5": (
        "select ff._read_it(e.execution_id) from ff.execution e",
        "perform ff._read_it(array(select f.flow_id from ff.flow f))",
        "select from unnest(v_ids) u(id) cross join lateral ff._read_more(u.id), ff.flow f",
        "if exists (select from ff.flow f where ff._read_it(f.flow_id)) then return; end if",
    ),
    "9": (
        "insert into ff.lane (state) values (exists (select from ff.meta m))",
        "insert into ff.lane as l (n) values ((select 1)) on conflict do nothing",
    ),
    "10": (
        "select e.rank from ff.execution e join ff.worker w on w.worker_id = e.worker_id",
        "select from ff.flow f where exists (select from ff.worker_event v)",
    ),
}
SOUND = (
    PLAIN,
    f"with c as ({PLAIN} returning e.version) {EVENT} from c",
    PLAIN.replace("rank = 1", "due_at = (e.due_at at time zone 'UTC' + p_ttl) at time zone 'UTC'"),
    PLAIN.replace("rank = 1", "due_at = v_now + p_ttl"),
    PLAIN.replace("rank = 1", "attempt_time_left = e.attempt_deadline_at - e.transitioned_at"),
    PLAIN.replace("rank = 1", "version = e.version + 1, rank = case when true then 1 end"),
    "select case e.phase when 'active' then 1 end, e.due_at + p_ttl from ff.execution e",
    "return query select * from ff._read_it(p_partition_key)",
    "v_x := ff._read_it(p_partition_key)",
    "select ff._count(e.rank) from ff.execution e",
    "insert into ff.event as v (partition_key, kind) values (p_partition_key, 'held')",
    "insert into ff.lane (state) select 'open' from ff.meta m",
    "update ff.lane l set state = ff._pure(l.state)",
    "with w as materialized (select from ff.worker x) select from ff.flow f, w",
)
SMALL = Library(
    partitioned=frozenset({"execution", "event", "flow", "edge", "step"}),
    querying=querying_functions(
        {
            "_read_it": "return (select 1 from ff.meta m)",
            "_read_more": "return ff._read_it(p_partition_key)",
            "_count": "return 1",
        }
    ),
    immutable=frozenset({"_pure"}),
)


def function(statement: str, parameters: str = "p_partition_key smallint") -> str:
    return (
        "-- A function.\ndrop function if exists ff.f;\n"
        f"create function ff.f({parameters})\nreturns void\nlanguage plpgsql\nas $$\n"
        f"begin\n  {statement};\nend;\n$$;\n"
    )


@pytest.mark.parametrize("rule", BROKEN)
def test_a_statement_that_breaks_a_rule_is_found(rule):
    for statement in BROKEN[rule]:
        found = {problem.partition(":")[0] for problem in problems(function(statement), SMALL)}
        assert found == {rule}, statement


def test_sound_statements_break_no_rule():
    for statement in SOUND:
        assert problems(function(statement), SMALL) == [], statement


def test_a_test_over_all_partitions_selects_something():
    broken = function("if exists (select from ff.flow f) then return; end if", "")
    assert [one.partition(":")[0] for one in empty_tests(broken, SMALL)] == ["11"]
    assert list(empty_tests(broken.replace("select from", "select 1 from"), SMALL)) == []


def test_a_lateral_subquery_over_all_partitions_reads_a_table():
    inner = "exists (select 1 from ff.flow f where f.flow_id = p.flow_id)"
    broken = function(f"select from ff.edge p cross join lateral (select {inner} as b) d", "")
    sound = f"select from ff.edge p cross join lateral (select {inner} from ff.flow g) d"
    assert [one.partition(":")[0] for one in rowless_laterals(broken, SMALL)] == ["13"]
    assert list(rowless_laterals(function(sound, ""), SMALL)) == []


def test_a_table_beside_partitioned_tables_is_found():
    alone = "select from ff.execution e join ff.flow f on true, ff._count(1)"
    joined = "select from ff.execution e join ff.route r on r.route_id = e.route_id"
    hidden = "return (select 1 from ff.task t where exists (select from ff.flow f))"
    assert list(mixed_reads(function(alone), SMALL)) == []
    assert list(mixed_reads(function("select from ff.route r"), SMALL)) == []
    assert list(mixed_reads(function(joined), SMALL)) == ["12: ff.route with partitioned tables"]
    assert list(mixed_reads(function(hidden), SMALL)) == ["12: ff.task with partitioned tables"]
    called = {"f": "ff._g(1)", "_g": "ff._h(2)", "_h": "", "_i": ""}
    assert reached(["f"], called) == {"f", "_g", "_h"}


def test_an_array_of_rows_is_no_parameter():
    parameters = "p_partition_key smallint, p_judged ff.verdict[]"
    assert problems(function("null", parameters), SMALL) == ["6: p_judged is an array of rows"]
    assert problems(function("null", "p_schedule ff.schedule"), SMALL) == []


def test_no_plan_cache_mode_is_left():
    text = function("null").replace("as $$", "set plan_cache_mode = auto\nas $$")
    assert problems(text, SMALL) == ["7: plan_cache_mode is set"]


def test_definitions_come_one_at_a_time():
    text = function("null")
    assert problems(text.replace("create function", "create type t; create function"), SMALL)
    assert problems(function("create table t (a integer)"), SMALL) == ["8: create table t"]


def test_the_reader_knows_where_a_statement_ends():
    code = (
        "begin if case when a then b end then x; else y := (case z when 1 then 2 end); end if; end;"
    )
    assert [" ".join(statement) for statement in statements(code)] == [
        "if case when a then b end",
        "x",
        "y := ( case z when 1 then 2 end )",
        "end if",
        "end",
    ]
    assert tokens("a || E'\\'' -- no\n<> \"b\".c::text[1]") == (
        ["a", "||", "E'\\''", "<>", '"b"', ".", "c", "::", "text", "[", "1", "]"]
    )
