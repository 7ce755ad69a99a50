"""`module:name` as people mistype it: the message says what is there and what is near."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from flowfabric.cli.imports import load_app, load_task

SHOP = """
from flowfabric import App
app = App()
@app.task
def greet(name: str) -> str: return name
@app.task(name="mail.send")
def send() -> None: ...
hidden = app.tasks
del send
"""
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes modules into an empty current folder; they are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)

    return write


def complaint(load: Callable[[str], object], reference: str) -> str:
    with pytest.raises(typer.BadParameter) as caught:
        load(reference)
    return caught.value.message


def test_a_task_is_found_by_its_variable_and_by_its_name(write):
    write(e6_shop=SHOP)

    assert load_task("e6_shop:greet").name == "e6_shop.greet"
    assert load_task("e6_shop:e6_shop.greet").name == "e6_shop.greet"
    assert load_task("e6_shop:mail.send").name == "mail.send"
    assert load_app("e6_shop:app").tasks.keys() == {"e6_shop.greet", "mail.send"}


def test_the_nearest_module_is_suggested(write):
    write(e6_shop=SHOP, other="")

    told = complaint(load_app, "e6_shpo:app")

    assert "there is no module 'e6_shpo'" in told
    assert told.endswith("did you mean e6_shop?")


def test_the_nearest_task_is_suggested_and_without_one_all_are_listed(write):
    write(e6_shop=SHOP)

    assert complaint(load_task, "e6_shop:great").endswith("did you mean e6_shop:greet?")
    assert complaint(load_task, "e6_shop:mail.sned").endswith("did you mean e6_shop:mail.send?")
    assert complaint(load_task, "e6_shop:zzz").endswith("; it has e6_shop:greet, e6_shop:mail.send")


def test_the_nearest_app_is_suggested(write):
    write(e6_shop=SHOP)

    assert complaint(load_app, "e6_shop:ap").endswith("did you mean e6_shop:app?")


def test_a_file_instead_of_a_module_is_told(write):
    write(e6_shop=SHOP)

    assert "write the module, 'e6_shop'" in complaint(load_app, "e6_shop.py:app")
    assert complaint(load_app, "e6_shop").endswith("write e6_shop:app")


@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("e6_shop.greet", "e6_shop:greet"),
        ("e6_shop.py", "e6_shop:task"),
        ("e6_shop", "e6_shop:task"),
        ("greet", "e6_shop:greet"),
        ("nothing", "nothing:task"),
        ("pkg.e6_shop", "pkg.e6_shop:task"),
        ("pkg.e6_shop.greet", "pkg.e6_shop:greet"),
    ],
)
def test_a_dot_for_the_colon_is_seen(write, tmp_path, reference, meant):
    write(e6_shop=SHOP)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "e6_shop.py").write_text(SHOP)

    assert complaint(load_task, reference).endswith(f"; write {meant}")


def test_what_a_module_raises_is_shown_from_its_own_line_on(write, capsys):
    write(e6_shop="x = 1\nraise ValueError('no such setting')\n")

    with pytest.raises(typer.Exit) as caught:
        load_app("e6_shop:app")

    told = capsys.readouterr().err
    assert caught.value.exit_code == 1
    assert 'e6_shop.py", line 2' in told
    assert "ValueError: no such setting" in told
    assert "e6_shop cannot be imported" in told
    assert "importlib" not in told
