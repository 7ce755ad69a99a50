"""How the SQL is written: the rules of the style guide and those that keep the tables distributable
(reliability notes B.3: 1 for partitioned tables, 2, 3, 6, 7, 8, 9 and 10), each as a test."""

from __future__ import annotations

import re
from functools import cache

import pytest

from flowfabric.db import citus
from flowfabric.db.inspection import in_partition
from support.cases import for_each
from support.citus_stand_in import Memory, StandIn

from .sources import HEADER_FIELDS, PACKAGE, SQL, SqlFile, helpers, public_functions, sql_files
from .tables import ACROSS, COORDINATOR, GLOBAL, ON_EVERY_NODE, PARTITIONED

FUNCTIONS = sql_files("shared", "functions")
PUBLIC = public_functions()
HELPERS = helpers()
VIEWS = sql_files("views")
LIBRARY = (*FUNCTIONS, *VIEWS)
EVERY = (*LIBRARY, *sql_files("schema"))
FORMS = {file.name: [] for file in FUNCTIONS}
for _file in FUNCTIONS:
    FORMS[_file.name].append(_file)
CALLED = re.compile(r"\bff\.(\w+)\(")


def each(files):
    return for_each("file", files, name=lambda file: file.id)


def body(file: SqlFile) -> str:
    """What stands between the dollar signs, comments and literals taken out."""
    parts = file.code.split("$$")
    return parts[1] if len(parts) == 3 else ""


# Lists


@each(PUBLIC)
def test_a_list_read_by_index_counts_from_one_and_has_one_dimension(file):
    """Otherwise the item of another index is taken: an approval was forged in this way."""
    header = file.code.split("$$")[0]
    for name in re.findall(r"\b(p_\w+)\s+[\w ]+\[\]", header):
        if re.search(rf"\b{name}\[", body(file)):
            assert f"array_lower({name}, 1)" in file.code, name
            assert f"array_ndims({name})" in file.code, name


# Files and headers


@each(LIBRARY)
def test_a_file_is_named_for_what_it_makes(file):
    made = re.findall(r"create (?:or replace )?(function|view) ff\.(\w+)", file.code)
    assert made == [("view" if file in VIEWS else "function", file.name)]


def test_only_helpers_and_the_clock_are_shared():
    shared = {file.name for file in sql_files("shared")}
    assert shared - {file.name for file in HELPERS} == {"now"}


README = (SQL / "README.md").read_text(encoding="utf-8")
WORDS = {
    word: noun
    for noun, words in re.findall(
        r"^\| (\w+) \| ([a-z, ]+) \|$",
        README.partition("| noun | words |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
    for word in words.split(", ")
}
NOUNS = {path.name: path.name for path in (SQL / "functions").iterdir()} | WORDS
NAMED = re.compile(
    rf"(?<=_)({'|'.join(sorted(NOUNS, key=len, reverse=True))})s?(?=_|$)",
)
CALLERS = {file.name: set() for file in HELPERS}
for _file in FUNCTIONS:
    for _name in set(CALLED.findall(_file.code)) & CALLERS.keys() - {_file.name}:
        CALLERS[_name].add(_file.room)


def room_of(name: str, callers: set[str]) -> str:
    """The folder of a helper, by the rule of sql/README.md."""
    if len(callers) == 1 and callers != {"shared"}:
        return next(iter(callers))
    named = NAMED.findall(name)
    return NOUNS[named[-1]] if named else "shared"


@pytest.mark.parametrize(
    ("name", "callers", "room"),
    [
        ("_keep_result", {"execution"}, "execution"),
        ("_reopen_edges", {"execution"}, "execution"),
        ("_reopen_edges", {"execution", "lease"}, "flow"),
        ("_resolve_edges", {"shared"}, "flow"),
        ("_write_execution_audit", {"execution", "lease"}, "audit"),
        ("_check_api_token", {"api_token", "worker"}, "api_token"),
        ("_propagate_end", {"execution", "flow"}, "shared"),
        ("_propagate_end", {"shared"}, "shared"),
        ("_raise_generation", set(), "event"),
    ],
)
def test_the_folder_of_a_helper_follows_from_its_callers_and_its_name(name, callers, room):
    assert room_of(name, callers) == room


@each(HELPERS)
def test_a_helper_is_in_the_folder_that_the_readme_names(file):
    callers = CALLERS[file.name]
    room = room_of(file.name, callers)
    assert file.room == room, f"called from {sorted(callers)}, so it belongs in {room}"


def test_every_helper_is_called_except_one_for_moved_partitions():
    """It is called by hand, and when the tables are distributed."""
    assert [name for name, callers in CALLERS.items() if not callers] == ["_raise_generation"]


def test_every_word_that_names_a_noun_places_a_helper():
    assert WORDS.keys() & NOUNS.values() == set()
    assert set(WORDS.values()) <= {file.room for file in PUBLIC}
    by_name = [name for name, rooms in CALLERS.items() if len(rooms) != 1 or rooms == {"shared"}]
    assert WORDS.keys() <= {named[-1] for name in by_name if (named := NAMED.findall(name))}


CHANGES = re.compile(
    r"\b(?:insert\s+into|update\s+(?:only\s+)?ff\.|delete\s+from|merge\s+into|truncate)\b"
)
LOCKS = re.compile(
    r"\bfor (?:no key update|update|key share|share)\b|\bpg_(?:try_)?advisory_|\block table\b"
)
RAISES = re.compile(r"\bff\._refuse\(|\braise\b")


@cache
def reached_by(name: str) -> tuple[SqlFile, ...]:
    """The function and all that it calls, directly or not, in both forms."""
    seen = {name}
    files = []
    ahead = [name]
    while ahead:
        for file in FORMS[ahead.pop()]:
            files.append(file)
            new = {called for called in CALLED.findall(file.code) if called in FORMS} - seen
            seen |= new
            ahead += new
    return tuple(files)


@each(HELPERS)
def test_the_verb_of_a_helper_says_what_it_does(file):
    """The verbs are explained in sql/README.md. They hold for all that the helper calls."""
    returns = re.search(r"\breturns ([\w.]+(?:\[\])?)", file.code)[1]

    def does(action):
        return [part.name for part in reached_by(file.name) if action.search(body(part))]

    if file.name.startswith("_check_"):
        assert returns == "void"
        assert RAISES.search(body(file))
        assert (does(CHANGES), does(LOCKS)) == ([], [])
    elif file.name.startswith("_lock_"):
        assert LOCKS.search(body(file))
        assert does(CHANGES) == []
        assert not does(RAISES) or returns in {f"ff.{table}" for table in PARTITIONED | GLOBAL}
    elif file.name.startswith(("_judge_", "_is_", "_read_")) or file.name.endswith("_problem"):
        assert (does(CHANGES), does(LOCKS), does(RAISES)) == ([], [], [])
        if file.name.startswith("_judge_"):
            assert returns in ("ff.verdict[]", "record")
        elif file.name.startswith("_is_"):
            assert returns == "boolean"
        elif file.name.endswith("_problem"):
            assert returns in ("text", "text[]")
    else:
        header = " ".join(file.header)
        assert "efuse" in header or "ff._refuse(" not in body(file)
        assert "40001" in header or "raise exception" not in body(file) or file.name == "_refuse"


@each(FUNCTIONS)
def test_a_function_is_dropped_and_made_anew(file):
    statement = file.code.strip()
    if file.name == "now":
        assert statement.startswith("create or replace function ff.now()")
    else:
        start = f"drop function if exists ff.{file.name};\ncreate function ff.{file.name}("
        assert statement.startswith(start)


@each(FUNCTIONS)
def test_the_events_of_an_execution_are_ordered_by_generation_first(file):
    """Ids of events rise within a generation only; functions/event reads one generation."""
    if file.room != "event":
        assert not re.search(r"\border by \w+\.event_id\b", body(file))


@each(VIEWS)
def test_a_view_is_replaced(file):
    assert file.code.strip().startswith(f"create or replace view ff.{file.name} as\n")


@each(EVERY)
def test_a_file_begins_with_a_sentence(file):
    assert file.header
    first = file.header[0]
    assert re.match(r"[A-Z]", first), first
    paragraph = " ".join(" ".join(file.header).split("  ")[0].split())
    assert "." in paragraph


@each(PUBLIC)
def test_a_public_header_has_its_fields_in_order(file):
    assert tuple(file.fields) == HEADER_FIELDS
    for field, text in file.fields.items():
        assert text, field


@each(PUBLIC)
def test_the_fields_are_aligned(file):
    for line in file.header:
        if re.match(r"(Moves|Refuses|Locks|Repeat|Rights):", line):
            assert re.match(r"\w+: +(?=\S)", line)[0].ljust(10) == line[:10]


# Spelling


@each(EVERY)
def test_sql_is_lower_case(file):
    code = re.sub(r"\b[Ee]''", "", file.code)
    assert re.findall(r"[A-Z]\w*", code) == []


@each(EVERY)
def test_indentation_is_by_blanks(file):
    assert "\t" not in file.text
    assert not re.search(r"[ \t]+$", file.text, re.MULTILINE)
    assert file.text.endswith("\n")
    assert not file.text.endswith("\n\n")


async def test_parameters_begin_with_p(catalogue):
    rows = await catalogue.fetch(
        "select p.proname, a.name from pg_proc p, unnest(p.proargnames, p.proargmodes) "
        "a(name, mode) where p.pronamespace = 'ff'::regnamespace "
        "and coalesce(a.mode, 'i') in ('i', 'b', 'v') and a.name !~ '^p_[a-z]'"
    )
    assert rows == []


@each(FUNCTIONS)
def test_locals_begin_with_v(file):
    for block in re.findall(r"\bdeclare\n(.*?)\nbegin\b", body(file), re.DOTALL):
        names = re.findall(r"^ {2}(\w+) ", block, re.MULTILINE)
        assert names
        assert [name for name in names if not name.startswith("v_")] == []


@each(FUNCTIONS)
def test_names_carry_their_schema(file):
    """With an empty search_path a bare name would not be found; this finds it sooner."""
    named_here = set(re.findall(r"\b(\w+) as (?:materialized )?\(", body(file)))
    tables = "|".join((PARTITIONED | GLOBAL) - named_here)
    assert re.findall(rf"\b(?:from|join|into|update)\s+(?:{tables})\b(?!\s*\()", body(file)) == []


# Functions


async def functions(connection):
    return await connection.fetch(
        "select p.oid, p.proname as name, l.lanname as language, p.prosecdef as is_definer, "
        "coalesce(p.proconfig, '{}') as settings, p.proargtypes[0] = 'smallint'::regtype "
        "and p.proargnames[1] = 'p_partition_key' as is_partitioned, "
        "has_function_privilege('public', p.oid, 'execute') as is_open "
        "from pg_proc p join pg_language l on l.oid = p.prolang "
        "where p.pronamespace = 'ff'::regnamespace order by p.proname"
    )


async def test_functions_are_plpgsql(catalogue):
    assert {f["name"] for f in await functions(catalogue) if f["language"] != "plpgsql"} == {"now"}


async def test_public_functions_find_names_in_pg_catalog_before_what_a_caller_can_make(catalogue):
    """With an empty path a caller's temporary type would come first, and run as our owner. What is
    private inherits the path of its caller, and `now` has none, so that it can be inlined."""
    fixed = {
        f["name"]
        for f in await functions(catalogue)
        if "search_path=pg_catalog, pg_temp" in f["settings"]
    }
    assert fixed == {file.name for file in PUBLIC}
    others = {
        setting
        for f in await functions(catalogue)
        if f["name"] not in fixed
        for setting in f["settings"]
        if setting.startswith("search_path")
    }
    assert others == set()


@each(PUBLIC)
def test_a_function_says_who_may_call_it(file):
    assert file.fields["Rights"] in ("app", "operator")


@each(PUBLIC)
def test_the_namespace_is_checked_before_anything_else(file):
    """In the first statement, so that a foreign caller learns nothing by other refusals."""
    declared = re.search(r"\bcreate function ff\.\w+\((.*?)\)\nreturns", file.code, re.DOTALL)[1]
    if "p_namespace " in declared and "_namespace_grant" not in file.name:
        checks = ("ff._check_namespace(", "ff._check_operator(")
        first = body(file).partition("\nbegin\n")[2].split(";")[0]
        assert first.strip().startswith(tuple(f"perform {check}" for check in checks)), first
    elif "p_namespaces " in declared:
        assert "perform ff._check_namespace(" in body(file)


async def test_public_functions_run_as_their_owner_and_helpers_do_not(catalogue):
    definers = {f["name"] for f in await functions(catalogue) if f["is_definer"]}
    assert definers == {file.name for file in PUBLIC}


async def test_nobody_may_call_a_function_by_default(catalogue):
    assert [f["name"] for f in await functions(catalogue) if f["is_open"]] == []


async def test_nobody_may_touch_a_table_by_default(catalogue):
    rows = await catalogue.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind in ('r', 'v') and "
        "has_table_privilege('public', c.oid, 'select, insert, update, delete, truncate')"
    )
    assert rows == []


async def test_a_function_on_partitioned_tables_takes_the_partition_first(catalogue):
    """Also the helpers, so that a call stays in one partition whoever made it."""
    partitioned = {f["name"] for f in await functions(catalogue) if f["is_partitioned"]}
    for file in FUNCTIONS:
        touched = set(re.findall(r"\bff\.(\w+)\b(?!\()", body(file))) & PARTITIONED
        if touched and file.name not in ACROSS:
            assert file.name in partitioned, f"{file.name} touches {touched}"


async def test_functions_that_may_wait_have_a_time_limit(catalogue):
    """In the function, not in the session: a session's setting does not reach every node."""
    waits = {
        "claim_executions",
        "complete_executions",
        "fail_executions",
        "release_leases",
        "submit_executions",
    }
    limited = {
        f["name"]
        for f in await functions(catalogue)
        if any(setting.startswith("lock_timeout=") for setting in f["settings"])
    }
    assert waits <= limited


HOT = (
    "claim_executions",
    "complete_executions",
    "fail_executions",
    "renew_leases",
    "release_leases",
    "expire_leases",
    "promote_delayed",
    "list_steps",
    "read_results",
    "_read_claimed",
    "_fail_over_reclaim_limit",
    "_expire_leases",
    "_enforce_leases",
    "_lease_executions",
)
HOT_SETTINGS = {
    "plan_cache_mode=force_generic_plan",
    "enable_seqscan=off",
    "enable_bitmapscan=off",
    "enable_hashjoin=off",
    "enable_mergejoin=off",
    "jit=off",
}


@pytest.mark.parametrize("name", HOT)
async def test_hot_functions_keep_the_planner_on_its_path(catalogue, name):
    (settings,) = [f["settings"] for f in await functions(catalogue) if f["name"] == name]
    assert set(settings) >= HOT_SETTINGS


# Statements


@each(LIBRARY)
def test_no_star_at_the_head_of_a_statement(file):
    """Except to hand on the rows of a helper, which declares the same columns."""
    stars = re.findall(r"\bselect \*[^;]*?(?:\(|;)", file.code)
    assert [star for star in stars if not re.fullmatch(r"select \* from ff\._\w+\(", star)] == []


@each(FUNCTIONS)
def test_no_dynamic_sql(file):
    assert not re.search(r"\bexecute\b", body(file))
    assert not re.search(r"\b(query_to_xml|dblink)\b", body(file))


@each(EVERY)
def test_time_comes_from_one_function(file):
    clocks = re.findall(
        r"(?<!ff\.)\bnow\(\)|\bclock_timestamp\b|\bcurrent_timestamp\b|\bcurrent_date\b"
        r"|\bcurrent_time\b|\blocaltimestamp\b|\blocaltime\b|\btransaction_timestamp\b"
        r"|\bstatement_timestamp\b|\btimeofday\b",
        file.code,
    )
    # The age of a transaction is not the engine's time: a test that sets the clock does not age it.
    known = {
        "now": ["clock_timestamp"],
        "_check_pass": ["transaction_timestamp", "clock_timestamp"],
        # Processes read the number of partitions by their own clocks.
        "raise_partitions": ["clock_timestamp"],
    }
    assert clocks == known.get(file.name, [])


@each(FUNCTIONS)
def test_time_and_transaction_are_read_into_a_variable(file):
    """Never inside a statement, where they would be volatile (B.3 rule 3)."""
    names = r"ff\.now|pg_current_xact_id"
    for call in re.finditer(rf"^.*\b({names})\(\).*$", body(file), re.MULTILINE):
        assert re.search(r"\bv_\w+\s.*:= (ff\.now|pg_current_xact_id)\(\);", call[0]), call[0]


@each(FUNCTIONS)
def test_the_clock_is_read_once(file):
    if file.name != "_reserve_keys":  # once a key, after its lock
        assert body(file).count("ff.now()") <= 1


@each(FUNCTIONS)
def test_no_session_settings_are_read_or_made(file):
    # refuses the old snapshot of a session; joins a line only without one; with one, locks the
    # number of partitions before it reads it
    if file.name not in ("_check_pass", "_lock_lines", "_reserve_keys"):
        assert "current_setting" not in body(file)
    assert not re.search(r"\bset_config\b|\bset local\b", body(file))
    assert not re.search(r"\bset session\b|\breset\b|\bshow\b", body(file))


@each(FUNCTIONS)
def test_the_bounds_of_a_duration_are_checked_by_one_function(file):
    """A comparison alone would let months pass."""
    if file.name != "_is_within":
        assert not re.search(r"\bbetween interval\b", body(file))


@each(FUNCTIONS)
def test_advisory_locks_only_tell_that_a_key_or_a_turn_is_taken(file):
    found = set(re.findall(r"\w*advisory\w*", body(file)))
    expected = {
        "_reserve_keys": {"pg_try_advisory_xact_lock"},
        "_claim_fresh": {"pg_try_advisory_xact_lock"},
        "deliver_signals": {"pg_try_advisory_xact_lock"},
        "_order_fairly": {"pg_try_advisory_xact_lock"},
        # A new route and a change of the limits of its task must not miss each other.
        "register_routes": {"pg_advisory_xact_lock_shared"},
        "register_tasks": {"pg_advisory_xact_lock"},
    }
    assert found <= expected.get(file.name, set())


@each(FUNCTIONS)
def test_nothing_that_cannot_be_distributed(file):
    code = body(file)
    assert not re.search(r"\bmerge\b|\bwhere current of\b|\bnextval\b|\bcursor for\b", code)
    assert not re.search(r"\bset\s+partition_key\b|,\s*partition_key\s*=\s*(?!\w+\.)", code)
    # To read text that may not be JSON, to let one row locked in vain go again, and to store items
    # the long way if an id is taken.
    allowed = file.name.endswith("_problem") or file.name in (
        "_is_json",
        "_pick_one_by_one",
        "_store_executions",
    )
    assert allowed or not re.search(r"\bexception\s+when\b", code)


@each(FUNCTIONS)
def test_every_table_is_read_by_its_partition(file):
    """Each mention of a partitioned table has a condition on its partition (B.3 rule 7)."""
    # a row kept in a variable is not a mention
    code = re.sub(r"\bv_\w+ +ff\.\w+(?:\[\])?;", "", body(file))
    tables = "|".join(sorted(PARTITIONED, key=len, reverse=True))
    mentions = re.finditer(
        rf"\b(?:from|join|update)\s+(?:only\s+)?ff\.({tables})\b\s+(?:as\s+)?(\w+)", code
    )
    for mention in mentions:
        statement = code[mention.start() : code.find(";", mention.start())]
        assert re.search(rf"\b{mention[2]}\.partition_key\b", statement), mention[0]
    inserts = re.finditer(rf"\binsert into ff\.({tables})\b[^(]*\(([^)]*)\)", code)
    for insert in inserts:
        assert insert[2].split(",")[0].strip() == "partition_key", insert[0]
    found = len(re.findall(rf"\bff\.(?:{tables})\b(?!\()", code))
    seen = len(re.findall(rf"\b(?:from|join|update|into|lock table)\s+ff\.(?:{tables})\b", code))
    assert found == seen, "a table is mentioned in a way this test does not read"


@each(PUBLIC)
def test_a_function_over_many_rows_takes_a_limit(file):
    """What finds its rows itself is bounded by the caller and passes over locked ones."""
    if file.name in ("expire_leases", "promote_delayed", "claim_executions"):
        assert "p_limit" in file.code
        assert "skip locked" in body(file) or "ff._claim_in_rounds(" in body(file)


@each(FUNCTIONS)
def test_rows_are_never_awaited_in_a_batch(file):
    """`for update` without `skip locked` stands only where a single row may be waited for."""
    for lock in re.finditer(r"\bfor (?:no key update|update|share|key share)\b[^;)]*", body(file)):
        if "skip locked" not in lock[0]:
            before = body(file)[max(0, lock.start() - 400) : lock.start()]
            # several rows are waited for in one place, in id order
            alone = file.name in (
                "_reserve_keys",
                "_enter_generation",
                "_raise_generation",
                "_lock_execution",
                "_lock_executions",
                "_lock_flow",
                "_lock_for_replay",
                "ack_cancel_member",
                "raise_partitions",
                "_lock_lane",
                "_lock_quota",
                "_lock_quota_gates",
                "_lock_declared_quotas",
                "_lock_gates",
                "_make_gate",
                "_lock_budget",
                "revoke_api_token",
                "_refresh_budgets",
                "_declare_budget",
                "_lock_subscription",
            )
            assert alone or "if p_wait then" in before, lock[0]


# The schema


async def test_there_are_no_triggers_and_no_rules(catalogue):
    assert not await catalogue.fetch(
        "select t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid "
        "where c.relnamespace = 'ff'::regnamespace"
    )
    assert not await catalogue.fetch(
        "select r.rulename from pg_rewrite r join pg_class c on c.oid = r.ev_class "
        "where c.relnamespace = 'ff'::regnamespace and c.relkind <> 'v'"
    )


async def test_every_table_is_of_a_known_kind(catalogue):
    rows = await catalogue.fetch(
        "select c.relname, c.relkind::text, c.relpersistence::text, "
        "exists (select from pg_attribute a where a.attrelid = c.oid "
        "        and a.attname = 'partition_key') as is_partitioned "
        "from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind in ('r', 'p', 'f', 'm')"
    )
    assert {row["relname"] for row in rows if row["is_partitioned"]} == PARTITIONED
    assert {row["relname"] for row in rows if not row["is_partitioned"]} == GLOBAL
    assert {(row["relkind"], row["relpersistence"]) for row in rows} == {("r", "p")}
    assert not await catalogue.fetch(
        "select from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r'"
    )


async def test_every_table_is_distributed_once_and_as_it_should_be(catalogue):
    """A table that is not listed here is distributed by chance, and fails this test."""
    tables = await citus.read_tables(StandIn(catalogue, Memory()))
    parts = {
        name: [label.removeprefix("ff.").partition(",")[0] for label, _ in statements]
        for name, statements in citus.distributing(tables, shards=32)
    }
    assert list(parts) == [
        "reference tables",
        "tables of the coordinator",
        "ff.execution",
        "tables beside ff.execution",
    ]
    distributed = [name for part in parts.values() for name in part]
    assert len(distributed) == len(set(distributed))
    assert set(parts["reference tables"]) == ON_EVERY_NODE
    assert set(parts["tables of the coordinator"]) == COORDINATOR
    assert parts["ff.execution"] == ["execution"]
    assert set(parts["tables beside ff.execution"]) == PARTITIONED - {"execution"}


async def test_indexes_of_partitioned_tables_are_led_by_the_partition(catalogue):
    rows = await catalogue.fetch(
        "select i.indexrelid::regclass::text as index, t.relname, "
        "a.attname as first, format_type(a.atttypid, a.atttypmod) as type "
        "from pg_index i join pg_class t on t.oid = i.indrelid "
        "join pg_attribute a on a.attrelid = t.oid and a.attnum = i.indkey[0] "
        "where t.relnamespace = 'ff'::regnamespace and t.relname = any($1::text[])",
        list(PARTITIONED),
    )
    assert {row["relname"] for row in rows} == PARTITIONED
    assert {(row["first"], row["type"]) for row in rows} == {("partition_key", "smallint")}


def test_doctor_can_limit_every_partitioned_table_to_one_partition():
    """On a cluster it asks one partition after the other, if a query cannot run over all nodes."""
    for table in PARTITIONED:
        on_node, fetched = in_partition(f"select from ff.{table} x")
        limited = f"(select x.* from ff.{table} x where x.partition_key = $1::smallint)"
        assert on_node == f"select from {limited} x"
        assert f"one_{table} as materialized" in fetched


async def test_the_indexes_of_the_hot_tables_are_few(catalogue):
    """Each one more costs 8 to 25 % of the drain rate: whoever adds one measures it."""
    rows = await catalogue.fetch(
        "select t.relname as table, c.relname as index from pg_index i "
        "join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid "
        "where t.oid in ('ff.execution'::regclass, 'ff.event'::regclass)"
    )
    assert {row["index"] for row in rows} == {
        "execution_pkey",
        "execution_ready",
        "execution_reclaim",
        "execution_due",
        "execution_attention",
        "execution_trim",
        # partial: only children, and only what ended with somebody left to tell
        "execution_parent",
        "execution_wakes",
        # partial: only what waits for a capable worker; empty, it costs nothing measurable
        "execution_unrouted",
        # partial: only what belongs to a code version
        "execution_version",
        # partial: only what a quota or budget refused
        "execution_line",
        # partial: only members of flows
        "execution_flow",
        "execution_unfinished",
        "event_pkey",
        "event_history",
    }


async def test_every_table_has_a_key(catalogue):
    rows = await catalogue.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind = 'r' and not exists (select from pg_index i "
        "where i.indrelid = c.oid and i.indisunique)"
    )
    # rows of this one are inserted and deleted only, many a second
    assert [row["relname"] for row in rows] == ["gate_release"]


async def columns(connection):
    return await connection.fetch(
        "select c.relname as table, a.attname as name, format_type(a.atttypid, null) as type, "
        "a.attidentity::text as identity from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r' and a.attnum > 0 "
        "and not a.attisdropped"
    )


async def test_times_have_a_zone(catalogue):
    for column in await columns(catalogue):
        assert column["type"] not in ("timestamp without time zone", "time without time zone")


async def test_times_are_named_at(catalogue):
    """`*_at`, with one exception of old (decision 0008)."""
    odd = {
        f"{column['table']}.{column['name']}"
        for column in await columns(catalogue)
        if column["type"] == "timestamp with time zone"
        and not column["name"].endswith("_at")
        and column["name"] != "delayed_until"
    }
    assert odd == set()


async def test_what_is_named_at_is_a_time(catalogue):
    for column in await columns(catalogue):
        if column["name"].endswith("_at"):
            assert column["type"] == "timestamp with time zone", column
        if column["name"].endswith("_count"):
            assert column["type"] in ("smallint", "integer", "bigint"), column
        if column["name"].startswith("is_"):
            assert column["type"] == "boolean", column


async def test_no_sequence_but_the_number_of_events(catalogue):
    identities = [
        (column["table"], column["name"], column["type"])
        for column in await columns(catalogue)
        if column["identity"]
    ]
    assert sorted(identities) == [
        ("audit", "audit_id", "bigint"),
        ("event", "event_id", "bigint"),
        ("worker_event", "worker_event_id", "bigint"),
    ]
    sequences = await catalogue.fetch(
        "select relname from pg_class where relnamespace = 'ff'::regnamespace and relkind = 'S'"
    )
    assert len(sequences) == 3


async def test_no_foreign_keys_exclusions_or_domains(catalogue):
    assert not await catalogue.fetch(
        "select conname from pg_constraint where connamespace = 'ff'::regnamespace "
        "and contype in ('f', 'x', 't')"
    )
    assert not await catalogue.fetch(
        "select typname from pg_type where typnamespace = 'ff'::regnamespace and typtype = 'd'"
    )


async def test_every_rule_has_a_name(catalogue):
    """A CHECK is named for what it says, not for its table and column."""
    rows = await catalogue.fetch(
        "select c.conname, r.relname from pg_constraint c join pg_class r on r.oid = c.conrelid "
        "where c.connamespace = 'ff'::regnamespace and c.contype = 'c'"
    )
    assert [row["conname"] for row in rows if row["conname"].endswith("_check")] == []


async def test_views_call_no_function_of_ours(catalogue):
    """They outlive a library that is dropped and made anew."""
    rows = await catalogue.fetch(
        "select r.ev_class::regclass::text as view, d.refobjid::regproc::text as function "
        "from pg_depend d "
        "join pg_rewrite r on r.oid = d.objid and d.classid = 'pg_rewrite'::regclass "
        "join pg_class c on c.oid = r.ev_class join pg_proc p on p.oid = d.refobjid "
        "where d.refclassid = 'pg_proc'::regclass and c.relnamespace = 'ff'::regnamespace "
        "and p.pronamespace = 'ff'::regnamespace"
    )
    assert rows == []


@each(sql_files("schema"))
def test_a_schema_step_calls_no_library_function(file):
    names = "|".join(function.name for function in FUNCTIONS)
    assert re.findall(rf"\bff\.(?:{names})\(", file.code) == []


# Plans


def expressions_by_exists(code: str) -> list[str]:
    """The subqueries behind `exists` that look a row of an outer table up and are not simply a
    condition of `where`: part of a case, of an `or`, or of what is selected."""
    found = []
    for match in re.finditer(r"\bexists \(", code):
        inner = code[match.end() : match.end() + balanced(code[match.end() :])]
        own = set(re.findall(r"\b(?:from|join) (?:ff\.)?\w+ (\w+)", inner)) | {"ff"}
        used = {name for name in re.findall(r"\b(\w+)\.\w+", inner) if not name.startswith("v_")}
        if (
            re.match(r"\s*select from ff\.\w+ ", inner)
            and used > own
            and _is_part(code[: match.start()], code[match.end() + len(inner) + 1 :])
        ):
            found.append(" ".join(inner.split()))
    return found


def balanced(text: str) -> int:
    """Where the bracket that is open at its start is closed."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return place
    raise AssertionError(text)


def _is_part(before: str, after: str) -> bool:
    """Whether what stands between is less than a condition of its own."""
    depth = 0
    for word in reversed(re.findall(r"[();]|\w+", before)):
        depth += {")": 1, "(": -1}.get(word, 0)
        if depth < 0:
            return True  # in brackets, and they are not those of a subquery
        if depth == 0 and word in ("or", "select", "when", "then", "else"):
            return True
        if depth == 0 and word in ("where", "on", "if", "elsif", ";"):
            break
    depth = 0
    for word in re.findall(r"[();]|\w+", after):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0 or (depth == 0 and word in ("order", "limit", "offset", "for", "group", ";")):
            return False
        if depth == 0 and word == "or":
            return True
    return False


def test_a_row_looked_up_by_exists_in_an_expression_is_never_read_from_a_hash_of_its_table():
    """PostgreSQL makes two plans of such a subquery, one of which reads the table whole; up to 17
    `enable_seqscan = off` keeps it from that one, from 18 on only `offset 0` does."""
    wrong = {
        file.id: [inner for inner in expressions_by_exists(body(file)) if "offset 0" not in inner]
        for file in FUNCTIONS
    }
    assert {id: found for id, found in wrong.items() if found} == {}


async def test_tables_are_plain_and_few(catalogue):
    rows = await catalogue.fetch(
        "select relname, relkind, relispartition from pg_class "
        "where relnamespace = 'ff'::regnamespace and relkind in ('r', 'p')"
    )
    assert {(bytes(row["relkind"]), row["relispartition"]) for row in rows} == {(b"r", False)}
    assert len(rows) < 64


async def test_what_the_engine_knows_is_in_columns_of_its_types(catalogue):
    found = {
        row["name"]: row["type"]
        for row in await catalogue.fetch(
            "select attname as name, format_type(atttypid, atttypmod) as type from pg_attribute "
            "where attrelid = 'ff.execution'::regclass and attnum > 0 and not attisdropped"
        )
    }
    counters = ("retry_count", "replay_count", "reclaim_count", "total_attempt_count")
    assert {found[name] for name in counters} == {"integer"}
    times = [name for name in found if name.endswith("_at") or name == "delayed_until"]
    assert {found[name] for name in times} == {"timestamp with time zone"}
    assert found["progress_percent"] == "smallint"
    assert not {"json", "jsonb"} & set(found.values())


def test_doctor_knows_which_functions_are_for_operators_only():
    check = (PACKAGE / "sql/doctor/installation/X03.sql").read_text()
    listed = re.search(r"p\.proname not in \(([^)]*)\)", check)
    assert listed is not None
    files = (PACKAGE / "sql/functions").rglob("*.sql")
    operators = {
        file.stem
        for file in files
        if re.search(r"^-- Rights: +operator", file.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"'(\w+)'", listed[1])) == operators
