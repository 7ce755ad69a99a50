"""How the SQL files of a folder become steps and a library."""

from __future__ import annotations

import pytest

from flowfabric.core.errors import StepEdited
from flowfabric.db.library import defined_names, package_source


def test_steps_come_in_order_of_their_number(sample):
    steps = sample.source().steps()

    assert [(step.number, step.name) for step in steps] == [(1, "parcel"), (2, "weight")]


def test_a_gap_between_steps_is_refused(sample):
    sample.write("schema/0004_later.sql", "select 1;\n")

    with pytest.raises(ValueError, match=r"0004_later\.sql should have the number 0003"):
        sample.source().steps()


def test_two_steps_with_one_number_are_refused(sample):
    sample.write("schema/0002_again.sql", "select 1;\n")

    with pytest.raises(ValueError, match="should have the number 0003"):
        sample.source().steps()


def test_a_step_with_an_odd_name_is_refused(sample):
    sample.write("schema/3-later.sql", "select 1;\n")

    with pytest.raises(ValueError, match=r"3-later\.sql is not named like"):
        sample.source().steps()


def test_markers_are_read_from_the_first_comment_lines_only(sample):
    sample.write(
        "schema/0001_parcel.sql", "-- breaking: old workers\n-- no-transaction\nselect 1;\n"
    )
    sample.write("schema/0002_weight.sql", "-- not breaking the rules\nselect 1;\n-- breaking\n")

    first, second = sample.source().steps()

    assert first.is_breaking
    assert not first.is_transactional
    assert not second.is_breaking
    assert second.is_transactional


def test_statements_end_at_semicolons_outside_quotes_and_comments(sample):
    statements = [
        "select ';', e'\\';', \";\" -- ;\n, 2;",
        "do $$ begin null; end $$;",
        "do $tag$ begin perform '$$;'; end $tag$;",
        "/* ; */ select 3",
    ]
    sample.write("schema/0001_parcel.sql", "\n".join(statements))

    assert list(sample.source().steps()[0].statements()) == statements


def test_a_step_listed_in_checksums_may_not_change(sample):
    sample.release()
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column mass integer;\n")

    with pytest.raises(StepEdited, match=r"0002_weight\.sql was edited after its release"):
        sample.source().steps()


def test_a_step_listed_in_checksums_may_not_vanish(sample):
    sample.release()
    sample.remove("schema/0002_weight.sql")

    with pytest.raises(StepEdited, match=r"0002_weight\.sql was released .* and is gone"):
        sample.source().steps()


def test_line_ends_do_not_change_a_step(sample):
    sample.release()
    file = sample.folder / "schema/0001_parcel.sql"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))

    assert sample.source().steps()[0].is_released


def test_the_library_is_shared_then_functions_then_views_by_name(sample):
    sample.write("functions/another/zebra.sql", "select 1;\n")

    assert [file.path for file in sample.source().library().files] == [
        "shared/now.sql",
        "functions/another/zebra.sql",
        "functions/sample/_private.sql",
        "functions/sample/count_parcels.sql",
        "views/parcel_view.sql",
    ]


def test_the_library_hash_follows_its_text(sample):
    before = sample.source().library().hash
    assert sample.source().library().hash == before

    sample.function("_private", "2")

    assert sample.source().library().hash != before


def text_of(library, path):
    (text,) = (file.text for file in library.files if file.path == path)
    return text


def test_a_file_with_two_forms_gives_one_of_them(sample):
    sample.two_forms("form")
    source, path = sample.source(), "functions/sample/form.sql"
    text = (sample.folder / path).read_text()

    plain = text_of(source.library(), path)
    distributed = text_of(source.library(distributed=True), path)

    before, after = text.split("\n-- When distributed\n")
    header = "-- Say which form this is.\n--\n-- Rights:   operator\n"
    assert plain == before
    assert distributed == header + after.replace("set plan_cache_mode = force_generic_plan\n", "")


def test_a_file_with_one_form_only_loses_its_plan_cache_mode_when_distributed(sample):
    path = "functions/sample/count_parcels.sql"
    text = "create function ff.count_parcels()\n{}set jit = off\nas $$ begin end $$;\n"
    sample.write(path, text.format("set plan_cache_mode = force_generic_plan\n"))

    assert text_of(sample.source().library(distributed=True), path) == text.format("")


def test_the_two_forms_of_a_library_have_two_hashes(sample):
    sample.two_forms("form")

    source = sample.source()

    assert source.library().hash != source.library(distributed=True).hash


def test_defined_names_ignore_comments():
    text = "-- create function ff.commented()\ncreate view ff.seen as select 1;\n"

    names = defined_names([text, "create function ff.run()", "create or replace function ff.now()"])

    assert names.functions == {"run", "now"}
    assert names.replaceable_functions == {"now"}
    assert names.views == {"seen"}


def test_the_package_brings_its_sql_along():
    source = package_source()

    assert source.steps()
    assert "ff.now()" in source.library().text


@pytest.mark.parametrize("distributed", [False, True])
def test_a_process_reads_the_sql_of_the_package_once(distributed):
    source = package_source()

    assert source.steps() is package_source().steps()
    assert source.library(distributed=distributed) is source.library(distributed=distributed)
    assert source.library(distributed=distributed).is_distributed is distributed
