"""Creates, starts, shares and stops the PostgreSQL server of a project.

The server trusts every connection, because only root and the user of the server can reach its
socket. The socket and its folder have mode 0700, and the server listens on no network.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from . import account as accounts
from . import binaries as programs
from . import postmaster, settings, users
from .account import Account
from .binaries import Binaries
from .errors import EmbeddedError, explained, start_failed
from .folder import PORT, Folder, sync
from .postmaster import State

USER = DATABASE = "flowfabric"


class Server:
    """The server of a project, for a process that uses it. `with` calls `release` at the end."""

    def __init__(self, folder: Folder, user: users.User, *, started: bool) -> None:
        self.url = f"postgresql://{USER}@/{DATABASE}?host={quote(str(folder.socket))}&port={PORT}"
        self.version = folder.record.version
        self.folder = folder.root
        self.data = folder.data
        self.log = folder.log
        self.started = started
        self._folder = folder
        self._user: users.User | None = user
        _servers.add(self)

    def release(self) -> None:
        """Stop using the server. Shut the server down if no other process uses it."""
        self._release(regardless=False)

    def stop(self) -> None:
        """Shut the server down even if other processes use it."""
        self._release(regardless=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Server {self.version} {self.url}>"

    def _release(self, *, regardless: bool) -> None:
        # Clear this first, so that only one thread stops using the server, and only once.
        user, self._user = self._user, None
        _servers.discard(self)
        if user is None:
            return
        try:
            with self._folder.locked():
                user.release()
                if regardless or not users.present(self._folder.users):
                    postmaster.stop(self._folder)
                    self._folder.forget_socket()
        except FileNotFoundError:
            # The project was deleted. The server notices within a minute and exits.
            pass
        finally:
            user.release()

    def _forget(self) -> None:
        if self._user:
            self._user.forget()
            self._user = None


def prepare(project: Path) -> None:
    """Create the `.flowfabric/` folder, so that `project` uses an embedded server from now on."""
    folder = Folder(project)
    with explained(folder.root):
        folder.make()


def start(project: Path, *, options: Mapping[str, str] | None = None) -> Server:
    """Return the server of `project`. Create and start it unless it is running.

    `options` and the `-c name=value` pairs of PGOPTIONS are server settings. They take effect only
    if this call starts the server.
    """
    chosen = settings.collect(options)
    folder = Folder(project)
    with explained(folder.root):
        folder.make()
        with folder.locked():
            user = users.User(folder.users)
            try:
                started = _start_unless_running(folder, chosen)
            except BaseException:
                user.release()
                raise
            return Server(folder, user, started=started)


def _start_unless_running(folder: Folder, chosen: Mapping[str, str]) -> bool:
    while postmaster.wait_for_state(folder) is State.DOWN:
        if postmaster.clear_leftovers(folder):
            _start(folder, chosen)
            return True
    return False


def _start(folder: Folder, chosen: Mapping[str, str]) -> None:
    account = accounts.choose(folder.data)
    folder.prepare(account)
    binaries = programs.find(account, data=folder.data, major=_major(folder.data))
    if binaries.source == "wheel" and account.switch and not programs.runs(binaries, account):
        binaries = programs.copy_wheel(binaries, folder.binaries)
    if not folder.data.exists():
        _make(folder, binaries, account)
    folder.note(replace(folder.record, version=binaries.version))
    postmaster.start(folder, binaries, account, chosen)


def _major(data: Path) -> int | None:
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def _make(folder: Folder, binaries: Binaries, account: Account) -> None:
    """Create the data folder with the database of flowfabric, and sync it to disk.

    If this fails, remove what was created.
    """
    for leftover in folder.private.glob("data.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    draft = folder.private / f"data.{secrets.token_hex(4)}"
    what = f"PostgreSQL {binaries.version} could not create its data in {folder.data}"
    try:
        for argv, sql in _making(binaries, draft):
            done = account.run(argv, stdin=sql)
            if done.returncode != 0:
                raise start_failed(what, folder.root, done.stdout)
        draft.rename(folder.data)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    for changed in (folder.private, folder.home, folder.home.parent):
        sync(changed)


def _making(binaries: Binaries, draft: Path) -> list[tuple[list[str | Path], str]]:
    """Return the commands that create a data folder, each with the SQL for its input."""
    initdb: list[str | Path] = [binaries.initdb, "-D", draft]
    locale = ["--encoding=UTF8", "--locale=C"]
    access = [f"--username={USER}", "--auth-local=trust", "--auth-host=reject"]
    single: list[str | Path] = [binaries.postgres, "--single", "-F", "-D", draft]
    return [
        ([*initdb, "--no-sync", "--no-instructions", *locale, *access], ""),
        ([*single, "-c", "exit_on_error=on", "template1"], f"CREATE DATABASE {DATABASE};\n"),
        ([*initdb, "--sync-only"], ""),
    ]


_servers: set[Server] = set()


@atexit.register
def _release_all() -> None:
    for server in list(_servers):
        with suppress(OSError, EmbeddedError):
            server.release()


def _forget_all() -> None:
    """Forget all servers in a forked child. Only the parent releases them."""
    for server in list(_servers):
        server._forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_all)
