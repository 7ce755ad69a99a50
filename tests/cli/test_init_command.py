"""`flowfabric init`: what it writes, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowfabric.cli.init import TEMPLATE


async def test_the_file_is_written_and_the_next_command_named(ff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    finished = await ff("init")

    assert finished.code == 0
    assert (tmp_path / "app.py").is_file()
    assert "flowfabric dev app:app" in finished.out


async def test_a_file_that_is_there_is_left_alone(ff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("mine\n")

    finished = await ff("init")

    assert finished.code == 4
    assert "app.py already exists" in finished.err
    assert (tmp_path / "app.py").read_text() == "mine\n"


async def test_another_name_is_used_in_the_commands(ff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    finished = await ff("init", "deep/shop.py")

    assert finished.code == 0
    assert "cd deep" in finished.out
    assert "flowfabric dev shop:app" in finished.out
    assert "flowfabric submit shop:welcome" in (tmp_path / "deep/shop.py").read_text()


@pytest.mark.parametrize("name", ["app", "my-app.py", "9.py", "app.txt", "."])
async def test_a_name_that_is_no_module_is_a_usage_error(ff, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)

    finished = await ff("init", name)

    assert finished.code == 2
    assert "is not the name of a module" in finished.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_file_is_small_and_passes_the_type_checker(tmp_path):
    text = TEMPLATE.format(module="app", file="app.py")
    (tmp_path / "app.py").write_text(text)

    assert len([line for line in text.splitlines() if line.strip()]) <= 25
    for tool in (["mypy", "--strict"], ["ruff", "check", "--isolated"], ["ruff", "format", "-q"]):
        command = [sys.executable, "-m", *tool, str(tmp_path / "app.py")]
        finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    assert (tmp_path / "app.py").read_text() == text
