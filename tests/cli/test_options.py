"""The global options: database, namespace and output form, before and after the command."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.operating import full
from flowfabric import cli
from flowfabric.cli.global_options import GLOBAL_OPTIONS
from flowfabric.cli.main import app, flowfabric

COMMANDS = Path(str(cli.__file__)).parent
DEFINED_BY = ("typer.Option", "typer.Argument")


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
        (["--url", "https://x", "serve"], "--url: does not apply to"),
        (["serve", "--url", "https://x"], "No such option: --url"),
        (["token", "new", "ci", "-s", "read", "--url", "https://x"], "No such option: --url"),
        (["webhook", "add", "https://y", "--url", "https://x"], "No such option: --url"),
        (["webhook", "test", "y", "--url", "https://x"], "No such option: --url"),
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


def definitions() -> list[tuple[str, str, str]]:
    """Every option and argument that the commands define: where, its longest name, its help."""
    found = []
    for file in sorted(COMMANDS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in DEFINED_BY:
                texts = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
                names = [text for text in texts if text.startswith("--")]
                help = [ast.unparse(one.value) for one in node.keywords if one.arg == "help"]
                where = f"{file.relative_to(COMMANDS)}:{node.lineno}"
                found.append((where, max(names, key=len, default=""), "".join(help)))
    return found


def test_an_option_with_the_same_name_and_help_is_defined_once():
    places = defaultdict(list)
    for where, name, help in definitions():
        places[name, help].append(where)
    assert {key: found for key, found in places.items() if len(found) > 1 and key[0]} == {}


def test_a_global_option_is_defined_in_one_place():
    names = {f"--{name.replace('_', '-')}" for name in GLOBAL_OPTIONS} | {"--reason", "--actor"}
    places = defaultdict(list)
    for where, name, _ in definitions():
        if name in names:
            places[name].append(where)
    assert {name: len(found) for name, found in places.items()} == dict.fromkeys(names, 1), places


def test_the_help_of_the_root_names_all_global_options():
    for name in GLOBAL_OPTIONS:
        assert f"--{name.replace('_', '-')}" in str(flowfabric.__doc__)


def commands(command, path):
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{path} {name}")


def test_no_command_has_two_options_with_the_same_name():
    """The later one would win, and the help would show a letter that does something else."""
    for path, command in commands(typer.main.get_command(app), "flowfabric"):
        names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
        assert len(set(names)) == len(names), path
