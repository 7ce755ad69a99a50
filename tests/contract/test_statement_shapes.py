"""Every function takes the statement shapes that Citus needs (sql/README.md), in its distributed
form. The rules are in shapes.py; here is a statement for each that breaks it."""

from __future__ import annotations

import re

import pytest

from flowfabric.db.citus import FORCED_FUNCTIONS, beginning_generations, opening_installation
from flowfabric.db.migrate import _BOOTSTRAP, _INSTALLATION
from support.cases import for_each

from .plpgsql import body_of, statements, tokens
from .shapes import (
    IMMUTABLE,
    Library,
    empty_tests,
    immutable_functions,
    mixed_reads,
    problems,
    querying_functions,
    reached,
    row_types,
    rowless_laterals,
)
from .sources import SqlFile, distributed_forms, sql_files
from .tables import ACROSS, GLOBAL, PARTITIONED

FUNCTIONS = tuple(SqlFile(file.path, is_distributed=True) for file in distributed_forms())
LIBRARY = Library(
    partitioned=frozenset(PARTITIONED),
    querying=querying_functions({file.name: body_of(file.text) for file in FUNCTIONS}),
    composites=row_types([_BOOTSTRAP, *(file.text for file in sql_files("schema"))]),
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


def test_what_the_migration_itself_creates_takes_the_statement_shapes():
    ((_, function), _) = opening_installation(_INSTALLATION)
    assert problems(function, LIBRARY) == []
    _, block = beginning_generations(8)
    # A block has no parameter. Its loop gives it each partition in turn.
    assert problems(block.replace("v_partition", "p_partition_key"), LIBRARY) == []


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
        "select from ff.edge g join ff.flow f using (partition_key, flow_id)",
        "select from ff.edge g natural join ff.flow f",
        "select from ff.flow f where f.partition_key in (select x.n from item x)",
        PLAIN.replace(
            "e.partition_key = p_partition_key", "(e.partition_key, e.id) = (i.pk, i.id)"
        ),
        "select from ff.flow f, item i where i.pk = f.partition_key",
        PLAIN + " + 1",
        PLAIN + " or e.rank = 1",
        PLAIN.replace("where", "where not"),
        PLAIN.replace("where e.", "where 1 + e."),
        "select from ff.flow f where f.partition_key = any (p_partition_keys)",
        "select f.partition_key from ff.flow f where f.partition_key = p_partition_key",
        "insert into ff.event (partition_key, kind) select i.pk, 'held' from item i",
        "insert into ff.event (partition_key, kind) values (v_row.partition_key, 'held')",
        "insert into ff.event (partition_key, kind) values (p_partition_key + 1, 'held')",
        "insert into ff.event (partition_key) values (p_partition_key), (0)",
        EVENT + " union all select 0, 'held'",
        "insert into ff.event (kind, partition_key) select 'held', p_partition_key",
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
        PLAIN.replace("rank = 1", "due_at = v_now + interval '1 s' * e.n"),
        PLAIN.replace("rank = 1", "due_at = v_now + 2 * e.backoff"),
        PLAIN.replace("rank = 1", "due_at = e.backoff + v_now"),
        PLAIN.replace("rank = 1", "due_at = p_ttl + e.due_at"),
        PLAIN.replace("rank = 1", "due_at = due_at + p_ttl"),
        PLAIN.replace("rank = 1", "due_at = v_now + backoff"),
        PLAIN.replace("rank = 1", "left = e.due_at - interval '1 s' - v_now"),
        PLAIN.replace("rank = 1", "due_at = v_now + (e.due_at - e.created_at)"),
        PLAIN.replace("rank = 1", "due_at = case when true then v_now + p_ttl end"),
        PLAIN.replace("rank = 1", "due_at = coalesce(e.due_at, v_now + p_ttl)"),
        PLAIN + " and v_now > e.due_at + p_ttl",
        PLAIN.replace(" where", " from (select x.due_at + x.n as z from item x) i where"),
        PLAIN + " returning v_now + p_ttl",
        EVENT + " returning v_now + p_ttl",
        "delete from ff.flow f where f.partition_key = p_partition_key and f.a_at + p_ttl < v_now",
    ),
    "3": (
        PLAIN.replace("rank = 1", "rank = case e.phase when 'active' then 1 end"),
        PLAIN.replace("rank = 1", "rank = coalesce(p_phase::ff.phase, e.phase)"),
        "update ff.lane l set state = coalesce(p_state::ff.lane_state, l.state)",
        "update ff.lane l set changed_at = ff._count(l.state)",
        "update ff.lane l set changed_at = greatest(l.changed_at, ff._count(l.state))",
        PLAIN.replace("rank = 1", "rank = coalesce(cast(p_phase as ff.phase), e.phase)"),
        PLAIN.replace("rank = 1", "phase = case when true then p_phase::ff.phase end"),
        PLAIN.replace("rank = 1", "phase = e.word::ff.phase"),
        PLAIN.replace("rank = 1", "word = e.phase::text"),
        PLAIN.replace("rank = 1", "due_at = date_trunc('hour', e.due_at)"),
        PLAIN.replace("rank = 1", "n = extract(epoch from coalesce(e.due_at, v_now))"),
        PLAIN.replace("rank = 1", "close_reason = concat('ended_', e.word)"),
        PLAIN + " and jsonb_build_object('rank', e.rank) = p_detail",
        PLAIN + " returning to_jsonb(e.rank)",
        PLAIN + " returning p_phase::ff.phase",
        "delete from ff.flow f where f.partition_key = p_partition_key and random() < 0.5",
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
    "if v_row.partition_key <> p_partition_key or v_found then return; end if",
    "insert into ff.event (partition_key) values (p_partition_key), (p_partition_key)",
    EVENT + " on conflict (partition_key, event_id) do update set kind = excluded.kind",
    PLAIN.replace("rank = 1", "due_at = v_row.due_at + p_ttl, rank = e.rank - 1"),
    PLAIN.replace("rank = 1", "wait_left = e.due_at - e.transitioned_at + e.wait_left"),
    PLAIN.replace("rank = 1", "due_at = date_trunc('day', e.due_at at time zone 'UTC')"),
    PLAIN.replace("rank = 1", "phase = case when true then 'active'::ff.phase end"),
    PLAIN.replace("rank = 1", "n = extract(epoch from e.backoff)::integer, phase = p_p::ff.phase"),
    PLAIN.replace(" where", " from (select x.due_at + x.n as z from item x offset 0) i where"),
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
    composites=frozenset({"verdict", "candidate", "flow", "schedule"}),
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
    for type_ in ("verdict[]", "candidate[]", "flow[]", "flow array", '"flow"[]', "schedule[3]"):
        parameters = f"p_partition_key smallint, p_judged ff.{type_}"
        assert problems(function("null", parameters), SMALL) == ["6: p_judged is an array of rows"]
    assert problems(function("null", "p_schedule ff.schedule"), SMALL) == []


def test_the_row_types_are_those_of_the_schema():
    tables = PARTITIONED | GLOBAL
    assert tables < LIBRARY.composites
    assert LIBRARY.composites - tables >= {"verdict", "candidate"}


async def test_what_the_lint_takes_for_immutable_is_immutable(db):
    rows = await db.fetch(
        "select p.proname as name from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace "
        "and p.proname = any ($1) group by p.proname having bool_and(p.provolatile = 'i')",
        sorted(IMMUTABLE),
    )
    assert {row["name"] for row in rows} == IMMUTABLE


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
