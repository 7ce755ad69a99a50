"""What the client calls is what the database has: names, arguments, columns and views."""

from __future__ import annotations

import re

from flowfabric.db import functions
from support.cases import for_each

PUBLIC = """
    select p.proname as name,
           array(select a.name from unnest(p.proargnames, p.proargmodes)
                   with ordinality a(name, mode, n)
                 where coalesce(a.mode, 'i') = 'i' order by a.n) as arguments,
           -- a function of one value is a table with one column, named like itself
           case when p.proretset then array(
                  select a.name from unnest(p.proargnames, p.proargmodes)
                    with ordinality a(name, mode, n)
                  where a.mode = 't' order by a.n)
                else array[p.proname::text] end as columns
    from pg_proc p
    where p.pronamespace = 'ff'::regnamespace and p.proname !~ '^_' and p.proname <> 'now'
"""


async def test_the_functions_are_those_of_the_catalogue(catalogue):
    rows = await catalogue.fetch(PUBLIC)
    assert sorted(row["name"] for row in rows) == sorted(f.name for f in functions.FUNCTIONS)
    found = {row["name"]: row for row in rows}
    for function in functions.FUNCTIONS:
        row = found[function.name]
        assert tuple(row["arguments"]) == tuple(f"p_{name}" for name in function.arguments)
        assert tuple(row["columns"]) == function.columns


def test_every_binding_is_listed():
    bound = {
        value
        for value in vars(functions).values()
        if isinstance(value, functions.Function | functions.Read)
    }
    assert bound == {
        *functions.FUNCTIONS,
        *functions.READS,
        functions.HINT,
        functions.READ_PARTITIONS,
    }
    names = [statement.name for statement in (*functions.FUNCTIONS, *functions.READS)]
    assert len(set(names)) == len(names)


@for_each("function", functions.FUNCTIONS, name=lambda function: function.name)
async def test_a_call_can_be_prepared(catalogue, function):
    statement = await catalogue.prepare(function.text)
    assert len(statement.get_parameters()) == len(function.arguments)
    assert tuple(attribute.name for attribute in statement.get_attributes()) == function.columns


async def test_calls_pass_and_get_built_in_types_only(catalogue):
    """No type of ours crosses the wire, so a connection has nothing to look up."""
    for function in functions.FUNCTIONS:
        statement = await catalogue.prepare(function.text)
        types = [*statement.get_parameters(), *(a.type for a in statement.get_attributes())]
        assert {type_.schema for type_ in types} == {"pg_catalog"}, function.name


async def test_reads_get_built_in_types_only(catalogue):
    for read in functions.READS:
        statement = await catalogue.prepare(read.text)
        assert {a.type.schema for a in statement.get_attributes()} == {"pg_catalog"}, read.name


@for_each("read", functions.READS, name=lambda read: read.name)
async def test_a_read_asks_one_function_and_can_be_prepared(catalogue, read):
    assert re.findall(r"\bff\.(\w+)", read.text) == [read.function]
    assert read.function in {function.name for function in functions.FUNCTIONS}
    assert await catalogue.prepare(read.text)


async def test_no_function_has_an_overload(catalogue):
    rows = await catalogue.fetch(
        "select p.proname from pg_proc p where p.pronamespace = 'ff'::regnamespace "
        "group by p.proname having count(*) > 1"
    )
    assert rows == []
