"""A function file with two forms: both are the same function to a caller."""

from __future__ import annotations

import re

from flowfabric.db.library import DISTRIBUTED_FORM, form_of
from support.cases import for_each

from .sources import files_with_two_forms, sql_files

FORM = """\
drop function if exists ff.count_parcels;
create function ff.count_parcels(p_partition_key smallint)
returns table (number integer)
language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
as $$
begin
end;
$$;
"""


def declaration(text: str) -> str:
    """The name, the parameters, the answer columns and the settings: all between the header and the
    body. The plan cache is for plain tables only."""
    declared = re.search(r"^drop function.*?(?=^as \$\$)", text, re.DOTALL | re.MULTILINE)
    assert declared, text
    return re.sub(r"^set plan_cache_mode = \w+\n", "", declared[0], flags=re.MULTILINE)


def problem(text: str) -> str | None:
    """What is wrong with a file of two forms, or None."""
    if text.count(f"\n{DISTRIBUTED_FORM}\n") != 1:
        return "the line stands there more than once"
    plain, distributed = form_of(text, distributed=False), form_of(text, distributed=True)
    if declaration(plain) != declaration(distributed):
        return "the declarations differ"
    if plain.partition("\nas $$")[2] == distributed.partition("\nas $$")[2]:
        return "the bodies are the same"
    return None


def test_both_forms_are_the_same_function_to_a_caller():
    for plain, distributed in files_with_two_forms():
        assert problem(plain.path.read_text(encoding="utf-8")) is None, plain.id
        assert plain.header == distributed.header[: len(plain.header)]


@for_each("file", sql_files("schema", "views"), name=lambda file: file.id)
def test_only_functions_have_two_forms(file):
    assert DISTRIBUTED_FORM not in file.text


CHANGED = FORM.replace("begin\n", "begin\n  number := 1;\n")
WRONG = {
    "the declarations differ": (
        CHANGED.replace("p_partition_key", "p_key"),
        CHANGED.replace("number integer", "number bigint"),
        CHANGED.replace("set jit = off\n", ""),
        CHANGED.replace("count_parcels", "count_letters"),
    ),
    "the bodies are the same": (FORM,),
    "the line stands there more than once": (f"{CHANGED}\n{DISTRIBUTED_FORM}\n{CHANGED}",),
}


def test_a_second_form_that_differs_for_the_caller_is_found():
    header = "-- Count the parcels.\n"
    assert problem(f"{header}{FORM}\n{DISTRIBUTED_FORM}\n-- Why.\n{CHANGED}") is None
    for expected, seconds in WRONG.items():
        for second in seconds:
            assert problem(f"{header}{FORM}\n{DISTRIBUTED_FORM}\n{second}") == expected
