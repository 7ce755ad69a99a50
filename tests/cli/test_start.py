"""The start of a command: it imports what it needs, and the help of all commands needs none."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from flowfabric.cli.main import COMMANDS, app

# Not pydantic: typer itself imports it to read options.
HEAVY = ("asyncpg", "rich", "flowfabric.app", "flowfabric.client", "flowfabric.core.flow")
DRAWS = ("flowfabric.drawing.svg", "flowfabric.embedded", "flowfabric.doctor", "flowfabric.worker")

# In this order: each adds to what is imported.
PROGRAM = """
import json, sys
from typer.testing import CliRunner
found = {}
from flowfabric.cli.main import app
for words in (["--version"], ["--help"], ["ls", "--help"], ["worker", "ls", "--help"]):
    assert CliRunner().invoke(app, words).exit_code == 0
    found[" ".join(words)] = [name for name in sys.argv[1:] if name in sys.modules]
print(json.dumps(found))
"""


def test_a_command_imports_only_what_it_needs():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *HEAVY, *DRAWS], capture_output=True, text=True, check=True
    )
    found = {words: set(names) for words, names in json.loads(done.stdout).items()}
    assert found["--version"] == set()
    assert found["--help"] <= {"rich"}
    assert found["ls --help"] <= {"rich", "asyncpg", "flowfabric.client", "flowfabric.core.flow"}
    assert found["worker ls --help"] == found["ls --help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(name):
    command = typer.main.get_command(app).commands[name]
    assert " ".join(command.help.partition("\n\n")[0].split()) == COMMANDS[name][1]


def test_the_version_is_that_of_the_package():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"flowfabric {version('flowfabric')}\n")


def test_a_misspelt_command_is_guessed():
    done = CliRunner().invoke(app, ["lss"])
    assert done.exit_code == 2
    assert "Did you mean 'ls'" in done.stderr
