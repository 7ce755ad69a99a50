"""Watch the files of a project for changes, by polling, which works on every file system."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TypeAlias

POLL_SECONDS = 0.2
# Stop a walk after this many files: a folder that is not a project may be huge.
MAX_FILES = 5000

_Look: TypeAlias = dict[str, tuple[int, int, int] | None]


class Watch:
    """The watched files, and the last saved file that has not been reported yet."""

    def __init__(self) -> None:
        self._seen: _Look = {}
        self._noticed: str | None = None

    def follow(self, files: Iterable[str], since: float = inf) -> None:
        """Watch these files as well. A file that was saved after `since` counts as just saved."""
        for file in files:
            if file not in self._seen:
                look = self._seen[file] = _look_at(file)
                if look is not None and look[0] > since * 1e9:
                    self._noticed = file

    async def saved(self, folder: Path | None = None, since: float = inf) -> str:
        """Wait until a file is saved and a burst of saves has ended; return one saved file.

        If `folder` is given, all modules in the folder are watched, too, even new ones: an import
        may have failed because a module was missing. A file that was saved after `since` counts as
        just saved.
        """
        if folder is not None:
            self.follow(await asyncio.to_thread(modules_below, folder), since)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            has_changed = await asyncio.to_thread(self._look, folder)
            if not has_changed and self._noticed is not None:
                file, self._noticed = self._noticed, None
                return file

    def _look(self, folder: Path | None) -> bool:
        """Return whether a file has changed since the last call.

        This call also stores the name of the changed file, so that the name is not lost if `saved`
        is cancelled.
        """
        has_changed = False
        for file in {*list(self._seen), *(modules_below(folder) if folder else ())}:
            now = _look_at(file)
            if self._seen.get(file) != now:
                self._seen[file] = now
                self._noticed = file
                has_changed = True
        return has_changed


def project_files() -> list[str]:
    """Return the files of imported modules, except Python's own and installed modules."""
    installed = tuple(
        {
            os.path.join(sysconfig.get_path(name), "")
            for name in ("stdlib", "platstdlib", "purelib", "platlib")
        }
    )
    own = os.path.join(os.path.dirname(sys.modules["flowfabric"].__file__ or ""), "")
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = os.path.abspath(file)
            if not path.startswith((*installed, own)):
                found.append(path)
    return found


def modules_below(folder: Path) -> list[str]:
    """Return the Python files below a folder. Skip hidden folders and virtual environments."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__", "node_modules"))
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        ]
        found += [os.path.join(parent, name) for name in files if name.endswith(".py")]
        if len(found) > MAX_FILES:
            break
    return found


def _look_at(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
