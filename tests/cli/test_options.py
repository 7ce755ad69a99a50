"""The global options: database, namespace and output form, before and after the command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cli.operating import full
from flowfabric.cli.main import app


def refused(*arguments: str) -> str:
    """The usage error of a command that must not reach a database."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert (result.exit_code, result.stdout) == (2, "")
    return " ".join(result.stderr.replace("│", " ").replace("─", " ").split())


BEFORE_AND_AFTER = [
    (["-o", "id"], [], True),
    ([], ["-o", "id"], True),
    (["-o", "json"], ["-o", "id"], True),
    (["--output=id", "-A"], [], True),
    (["-o", "id", "-n", "other"], [], False),
    (["-o", "id", "-n", "other"], ["--namespace", "test"], True),
    (["--namespace", "test", "-o", "id"], ["-n", "other"], False),
]


async def test_global_options_stand_before_or_after_the_command_and_after_wins(ff, make):
    id = full((await make.execution("waiting")).id)
    for before, after, is_found in BEFORE_AND_AFTER:
        found = await ff(*before, "ls", *after)
        assert found.code == 0
        assert found.out.split() == ([id] if is_found else []), (before, after)


async def test_global_options_reach_the_commands_of_a_group(ff, db, make):
    await make.execution("waiting")
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    found = await ff("--database-url", db.url, "-A", "-o", "table", "lane", "ls", url=nowhere)
    assert found.code == 0
    assert found.out.startswith("NAMESPACE")
    assert (await ff("--database-url", nowhere, "lane", "ls")).code == 5


@pytest.mark.parametrize(
    "words",
    ["ls", "show ID", "why ID", "attempts ID", "cancel ID --dry-run", "events", "top", "db status"],
)
async def test_a_pipe_gets_text_and_json_only_when_asked_for(ff, make, words):
    id = full((await make.execution("leased")).id)
    arguments = [id if word == "ID" else word for word in words.split()]
    text = await ff(*arguments, is_program=False)
    assert text.out[:2] not in ("", '{"', "{\n")
    assert (await ff(*arguments, "-o", "json")).out[:2] in ('{"', "{\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-A", "lane", "pause", "mail"], "--all-namespaces: does not apply to"),
        (["-n", "x", "namespace", "grant", "a", "b"], "--namespace: does not apply to"),
        (["-n", "x", "worker", "shop:app"], "--namespace: does not apply to"),
        (["-o", "json", "init"], "--output: does not apply to"),
        (["--database-url", "x", "db", "sql"], "--database-url: does not apply to"),
        (["-o", "wide", "show", "x"], "'wide' is not one of 'table', 'json'"),
        (["-n", "x", "ls", "-A"], "--all-namespaces: cannot be combined with --namespace"),
        (["-n", "", "ls"], "namespace: must be 1 to 256 bytes"),
        (["ls"], "no database given. Pass it,"),
        (["lane", "ls"], "or go to the folder where `flowfabric dev` runs"),
    ],
)
def test_a_global_option_that_does_not_apply_or_is_missing_is_refused(
    arguments, told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert told in refused(*arguments)
