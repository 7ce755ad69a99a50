"""What `flowfabric dev` notices about files."""

from __future__ import annotations

import asyncio
import os
from math import inf
from pathlib import Path

import pytest

from flowfabric.cli.dev.watch import Watch, modules_below, project_files


async def saved(watch: Watch, *arguments: object, within: float = 60.0) -> str:
    return await asyncio.wait_for(watch.saved(*arguments), within)  # type: ignore[arg-type]


class Watched(Watch):
    """Counts the looks at the files; they run in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._looked = asyncio.Event()

    def _look(self, folder: Path | None) -> bool:
        has_changed = super()._look(folder)
        self._loop.call_soon_threadsafe(self._looked.set)
        return has_changed

    async def until_looked(self) -> None:
        self._looked.clear()
        await asyncio.wait_for(self._looked.wait(), 60)


async def is_silent(watch: Watched) -> bool:
    """Return whether nothing is reported.

    The watch reports a change only after one more look. So three looks without a report prove it.
    """
    waiting = asyncio.create_task(watch.saved())
    looking = asyncio.create_task(three_looks(watch))
    await asyncio.wait([waiting, looking], return_when=asyncio.FIRST_COMPLETED)
    looking.cancel()
    return waiting.cancel()


async def three_looks(watch: Watched) -> None:
    for _ in range(3):
        await watch.until_looked()


async def test_a_save_is_noticed_once(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    watch = Watched()
    watch.follow([str(file)])

    file.write_text("22")

    assert await saved(watch) == str(file)
    assert await is_silent(watch)


async def test_a_save_while_nobody_waits_is_not_forgotten(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    watch = Watched()
    watch.follow([str(file)])
    waiting = asyncio.create_task(watch.saved())
    file.write_text("22")
    # It has noticed the save, and reports it only after another look.
    await watch.until_looked()
    assert waiting.cancel()

    assert await saved(watch) == str(file)


async def test_a_file_replaced_by_another_is_noticed(tmp_path):
    file, other = tmp_path / "a.py", tmp_path / "b.py"
    for one in (file, other):
        one.write_text("1")
        os.utime(one, (1, 1))
    watch = Watch()
    watch.follow([str(file)])

    other.rename(file)

    assert await saved(watch) == str(file)


async def test_a_new_module_counts_where_any_does(tmp_path):
    watch = Watched()
    waiting = asyncio.create_task(watch.saved(tmp_path))
    await watch.until_looked()

    (tmp_path / "new.py").write_text("")

    assert await asyncio.wait_for(waiting, 60) == str(tmp_path / "new.py")


async def test_a_file_saved_since_a_moment_counts_as_saved(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    before, after = file.stat().st_mtime - 1, file.stat().st_mtime + 1
    late, early, never = Watched(), Watched(), Watched()
    late.follow([str(file)], before)
    early.follow([str(file)], after)
    never.follow([str(file)], inf)

    assert await saved(late) == str(file)
    for watch in (early, never):
        assert await is_silent(watch)


def test_a_walk_leaves_out_environments_and_hidden_folders(tmp_path):
    for name in ("a.py", "deep/b.py", ".git/c.py", "venv/pyvenv.cfg", "venv/lib/d.py", "e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    found = {os.path.relpath(file, tmp_path) for file in modules_below(tmp_path)}

    assert found == {"a.py", "deep/b.py"}


def test_installed_modules_are_not_of_the_project():
    found = project_files()

    assert __file__ in found
    assert pytest.__file__ not in found
    assert asyncio.__file__ not in found
