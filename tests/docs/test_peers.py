"""The pages for those who come from elsewhere: what the right column names is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.pages import ROOT
from flowfabric import App, Context, Flow, FlowFabric, FlowRun, Run, Task
from flowfabric.cli.main import app as command_line

PAGES = sorted((ROOT / "docs" / "guide").glob("coming-from-*.md"))
KINDS = {"app": App, "client": FlowFabric, "ctx": Context, "f": Flow, "run": Run, "task": Task}


def answers(page: Path) -> str:
    """The right column of the tables of a page."""
    rows = re.findall(
        r"^\| (?!Celery|Temporal|DBOS|Prefect).+? \| (.+) \|$", page.read_text(), re.M
    )
    assert len(rows) > 30
    return "\n".join(rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_verb_that_a_page_names_is_there(page):
    told = answers(page)
    client = FlowFabric("postgresql://nowhere")
    for owner, name, rest in re.findall(r"\b(app|client|ctx|f|run|task)\.(\w+)(?:\.(\w+))?", told):
        kind: Any = client if owner == "client" else KINDS[owner]
        if owner == "f" and name == "run":
            kind, name = FlowRun, rest
        elif owner == "client":
            kind, name = getattr(client, name), rest
        elif (owner, name) == ("task", "name"):
            continue  # the name of a task, as text
        assert hasattr(kind, name), f"{owner}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_that_a_page_names_is_there(page):
    commands = re.findall(r"`flowfabric ([^`]+)`", answers(page))
    assert commands
    for words in map(str.split, commands):
        found: Any = typer.main.get_command(command_line)
        while hasattr(found, "commands") and words:
            word = words.pop(0)
            if found.name == "worker" and ":" in word:
                word = "run"
            if word == "...":
                break
            found = found.commands[word]
        known = {option for one in found.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if re.match("-[-a-z]", word)} <= known, words
