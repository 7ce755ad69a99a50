"""The `.flowfabric/` folder of a project: the server's data, socket, programs and log.

While a process changes the folder, it locks the file `lock`.

    .flowfabric/
    ├── lock            locked while a process looks for, creates, starts or stops the server
    ├── users/          one locked file per process that uses the server
    ├── postgres.log    the server's log, mode 0600: it may quote statements
    ├── postgres.json   the record: where data and socket are if not here, mode 0600
    ├── postgres/       data and socket, mode 0700, owned by the user who runs the server
    └── binaries/       a copy of the wheel's programs, if the server's user needs one
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .account import Account
from .errors import FolderNotReachable, FolderNotTrusted

NAME = ".flowfabric"
# The server listens on no network, so the port is only a part of the socket's name. With the
# default port, `psql -h <folder>` works without `-p`.
PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"

# The kernel's limit is 104 bytes on macOS and 108 on Linux.
_LONGEST_SOCKET = 100
# /var/tmp is the last resort, because a clean-up of old files there would damage the data.
_STATE_FOLDERS = ("/var/lib", "/var/db", "/var/tmp")
_LARGEST_LOG = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What `postgres.json` says: where the server's files are, and the server's version.

    `home` and `socket` are None if the files are in the usual folders.
    """

    home: str | None = None
    socket: str | None = None
    version: str = ""


def exists(project: Path) -> bool:
    """Return whether a project has an embedded server, or was prepared for one."""
    return (project / NAME).is_dir()


class Folder:
    """The `.flowfabric/` folder of one project."""

    def __init__(self, project: Path) -> None:
        self.root = project.absolute() / NAME
        self.users = self.root / "users"
        self.log = self.root / "postgres.log"
        self._old_log = self.root / "postgres.log.old"
        self._lock = self.root / "lock"
        self._record = self.root / "postgres.json"
        self.record = Record()

    def make(self) -> None:
        """Create the folder if it does not exist."""
        with suppress(FileExistsError):
            self.root.mkdir()
            if os.geteuid() == 0:
                # The server's user must be able to enter, so do not rely on the umask.
                self.root.chmod(0o755)
            (self.root / ".gitignore").write_text("*\n")
        with suppress(FileExistsError):
            self.users.mkdir()
            self._give_to_owner(self.users)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process, and read the record that the last process wrote."""
        descriptor = self.open(self._lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for file in (self.log, self._old_log, self._record):
                _close_to_others(file)
            self.record = self._read()
            yield
        finally:
            # Unlock explicitly: a child that was forked in the meantime would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @property
    def home(self) -> Path:
        """The folder above `postgres/` and `binaries/`. It is usually `.flowfabric/`."""
        return Path(self.record.home) if self.record.home else self.root

    @property
    def private(self) -> Path:
        """The folder that only the server's user can enter."""
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        return self.private / "data"

    @property
    def binaries(self) -> Path:
        return self.home / "binaries"

    @property
    def socket(self) -> Path:
        """The folder of the server's socket."""
        return Path(self.record.socket) if self.record.socket else self.private

    def prepare(self, account: Account) -> None:
        """Create the server's folders where `account` can use them."""
        is_new = not self.record.home and not self.data.exists()
        if is_new and not account.can_enter(self.root):
            self.note(replace(self.record, home=str(self._make_home_outside(account))))
        _make_private(self.private, account)
        if not account.can_enter(self.private):
            raise FolderNotReachable(
                f"the embedded server runs as user {account.name}, who owns {self.private} but "
                f"cannot enter a folder above it. Find that folder with: namei -l {self.private}"
            )
        self._choose_socket_folder(account)

    def note(self, record: Record) -> None:
        """Write a new record to disk, so that the next process reads it even after a crash."""
        if record == self.record:
            return
        self.record = record
        draft = self._record.with_suffix(".new")
        with suppress(FileNotFoundError):
            draft.unlink()
        with open(self.open(draft, os.O_WRONLY), "w") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._record)
        sync(self.root)

    def open(self, path: Path, flags: int) -> int:
        """Open or create a file. A new file belongs to the owner of the folder, not to root."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(path, flags)
        self._give_to_owner(descriptor)
        return descriptor

    def open_log(self) -> int:
        """Open the log for appending. If the log is too long, rename it and begin a new one."""
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > _LARGEST_LOG:
                self.log.replace(self._old_log)
        descriptor = self.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.lseek(descriptor, 0, os.SEEK_END)
        return descriptor

    def forget_socket(self) -> None:
        """Remove the socket's folder if it is outside the project. The server must have stopped."""
        if self.record.socket:
            with suppress(OSError):
                Path(self.record.socket).rmdir()
            self.note(replace(self.record, socket=None))

    def _read(self) -> Record:
        try:
            found = json.loads(self._record.read_text())
        except FileNotFoundError:
            return Record()
        record = Record(**{name: found.get(name) for name in ("home", "socket", "version")})
        if record.home and not self._is_ours(Path(record.home)):
            return Record()
        return record

    def _is_ours(self, home: Path) -> bool:
        """Return whether `home` belongs to this project. If this project is a copy, `home` may
        belong to the original project.
        """
        owner = home / "project"
        try:
            recorded = Path(owner.read_text())
        except FileNotFoundError:
            raise FolderNotReachable(
                f"{self._record} says that the data is in {home}, which is gone. Bring it back, or "
                f"start empty: rm -r {self.root}"
            ) from None
        if recorded == self.root:
            return True
        with suppress(OSError, ValueError, LookupError):
            if json.loads((recorded / self._record.name).read_text())["home"] == str(home):
                return False
        owner.write_text(str(self.root))
        return True

    def _make_home_outside(self, account: Account) -> Path:
        """Create a folder outside the project, for a server whose user cannot enter the project."""
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]
        for state in _STATE_FOLDERS:
            if not (os.access(state, os.W_OK) and account.can_enter(Path(state))):
                continue
            parent = Path(state, f"flowfabric-{os.geteuid()}")
            _make_own(parent)
            home = parent / f"{name}-{secrets.token_hex(4)}"
            home.mkdir()
            home.chmod(0o711)
            (home / "project").write_text(str(self.root))
            return home
        raise FolderNotReachable(
            f"the embedded server runs as user {account.name}, who can enter neither {self.root} "
            f"nor any of {', '.join(_STATE_FOLDERS)}. Move the project to a folder that "
            f"{account.name} can enter, or run as an ordinary user."
        )

    def _choose_socket_folder(self, account: Account) -> None:
        if self.record.socket and _is_private(Path(self.record.socket), account):
            return
        if is_usable_socket(self.private):
            if self.record.socket:
                self.note(replace(self.record, socket=None))
            return
        for parent in (tempfile.gettempdir(), "/tmp"):
            folder = Path(tempfile.mkdtemp(prefix="flowfabric-", dir=parent))
            if account.switch:
                os.chown(folder, account.uid, account.gid)
            if is_usable_socket(folder) and account.can_enter(folder):
                self.note(replace(self.record, socket=str(folder)))
                return
            folder.rmdir()
        raise FolderNotReachable(
            f"the path of {self.private} is too long for a Unix socket, or has a comma in it, and "
            f"user {account.name} cannot use /tmp instead. Move the project to a shorter path."
        )

    def _give_to_owner(self, target: int | Path) -> None:
        """If this process is root, make the owner of the folder the owner of a file."""
        if os.geteuid() == 0:
            owner = self.root.stat()
            os.chown(target, owner.st_uid, owner.st_gid)


def sync(folder: Path) -> None:
    """Sync a folder, so that new files in it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _close_to_others(file: Path) -> None:
    """Remove the permissions of other users on a file. A lax umask may have given them."""
    try:
        # Do not follow a link: root may be working in another user's folder.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def is_usable_socket(folder: Path) -> bool:
    """Return whether clients can connect to a socket in `folder`.

    The path must be short and must not contain a comma: in a database URL, a comma separates hosts.
    """
    path = os.fsencode(folder / SOCKET)
    return len(path) <= _LONGEST_SOCKET and b"," not in path


def _make_own(folder: Path) -> None:
    """Create a folder, or refuse an existing one that another user owns or can write."""
    try:
        folder.mkdir()
        folder.chmod(0o711)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise FolderNotTrusted(
                f"{folder} is not a folder that only this user can write. Another user may have "
                f"created it: look at it (ls -ld {folder}), then remove it."
            ) from None


def _make_private(folder: Path, account: Account) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if account.switch and not (folder / "data").exists():
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _is_private(folder: Path, account: Account) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == account.uid and not found.st_mode & 0o077
