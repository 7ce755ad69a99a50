"""Read the SQL of the package: the numbered schema steps, and the library of functions and views.

The library is always re-created as a whole. This module does not connect to a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import takewhile

from flowfabric.core.errors import StepEdited

LIBRARY = 1
"""The version of the library. Raise it by hand with the first change after a release."""

DISTRIBUTED_FORM = "-- When distributed"
"""The line in a function file that stands above the form for distributed tables."""

# Shared helpers come first: Postgres resolves parameter defaults when it creates a function.
FOLDERS = ("shared", "functions", "views")

_STEP = re.compile(r"(\d{4})_([a-z0-9_]+)(?:\.sql)?")
_MARKER = re.compile(r"--\s*(breaking|no-transaction)\s*(?::.*)?")
_DEFINITION = re.compile(
    r"^\s*create\s+(or\s+replace\s+)?(function|procedure|view)\s+ff\.(\w+)",
    re.IGNORECASE | re.MULTILINE,
)
# This setting is left out for distributed tables: Citus plans a statement for its shard each time,
# and cannot do that from a generic plan.
_PLAN_CACHE_MODE = re.compile(r"^set plan_cache_mode = \w+\n", re.MULTILINE)
# An UPDATE or a DELETE finds its rows by a join with `p_partition_key as pk`. For distributed
# tables, the parameter itself is used. On one server, a plan that uses the parameter and was made
# while the table was empty would read the whole partition (sql/README.md).
_PARTITION_OF_A_ROW = re.compile(r"\b(?<=partition_key = )\w+\.pk\b")
# A semicolon ends a statement. The alternatives before it match tokens inside which a semicolon
# does not count.
_STATEMENT_PART = re.compile(
    r"""--[^\n]*
      | /\*.*?\*/
      | \b[eE]'(?:[^'\\]|\\.|'')*'
      | '(?:[^']|'')*'
      | "(?:[^"]|"")*"
      | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | (?P<end>;)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One schema step: a numbered change of types, tables and indexes.

    It is a file, or a folder of files. It is applied once, and is never edited after its release.
    """

    number: int
    name: str
    file: str
    text: str
    checksum: str
    is_breaking: bool
    is_transactional: bool
    is_released: bool

    def statements(self) -> Iterator[str]:
        """Yield the statements one by one.

        This is for Citus, which accepts only one at a time, and for a step that cannot run inside a
        transaction.
        """
        return _statements(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFile:
    """One file of the library: its path below `sql/`, and its text in the form that the database
    gets.
    """

    path: str
    text: str

    def statements(self) -> Iterator[str]:
        """Yield the statements one by one, because Citus accepts only one at a time."""
        return _statements(self.text)


@dataclass(frozen=True, kw_only=True)
class Library:
    """All functions and views, in the order in which they are created."""

    version: int
    files: tuple[LibraryFile, ...]
    is_distributed: bool = False

    @property
    def text(self) -> str:
        """Return the whole library as one script."""
        return "\n".join(f"-- {file.path}\n{file.text}" for file in self.files)

    @cached_property
    def hash(self) -> str:
        """Return the hash of the text. If two libraries have the same hash, they are equal."""
        return _digest(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder with the layout of `flowfabric/sql`. Tests use their own folders."""

    folder: Traversable
    library_version: int = LIBRARY

    def steps(self) -> tuple[Step, ...]:
        """Return the schema steps in order.

        Raise an error if a number is missing, or if a released step was edited or is gone.
        """
        folder = self.folder / "schema"
        released = _released(folder / "CHECKSUMS")
        entries = [entry for entry in folder.iterdir() if _is_step(entry)]
        steps = tuple(
            _read_step(entry, released) for entry in sorted(entries, key=lambda entry: entry.name)
        )
        for expected, step in enumerate(steps, start=1):
            if step.number != expected:
                raise ValueError(f"schema/{step.file} should have the number {expected:04}.")
        if missing := released.keys() - {step.file for step in steps}:
            raise StepEdited(f"schema/{min(missing)} was released (CHECKSUMS) and is gone.")
        return steps

    def library(self, *, distributed: bool = False) -> Library:
        """Return the functions and views for the latest schema step.

        If `distributed` is true, the functions have the form for distributed tables. Otherwise they
        have the form for one server.
        """
        return Library(
            version=self.library_version,
            files=tuple(
                LibraryFile(path=f"{folder}/{path}", text=form_of(_text(file), distributed))
                for folder in FOLDERS
                for path, file in _sql_files(self.folder / folder)
            ),
            is_distributed=distributed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedNames:
    """Names of functions and views in schema ff.

    A replaceable function, such as `ff.now`, is created by `create or replace`. So a new library
    replaces the function in place and does not drop it first.
    """

    functions: frozenset[str]
    replaceable_functions: frozenset[str]
    views: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package(Source):
    """The SQL of the installed package. A process reads its files once, not for each connection."""

    def steps(self) -> tuple[Step, ...]:
        return _steps_of_package(self)

    def library(self, *, distributed: bool = False) -> Library:
        return _library_of_package(self, distributed)


@cache
def package_source() -> Source:
    """Return the SQL of the installed package."""
    return _Package(folder=files("flowfabric") / "sql")


@cache
def _steps_of_package(package: _Package) -> tuple[Step, ...]:
    return Source.steps(package)


@cache
def _library_of_package(package: _Package, distributed: bool) -> Library:
    return Source.library(package, distributed=distributed)


def form_of(text: str, distributed: bool) -> str:
    """Return the SQL of a function file, in the form for distributed tables or for one server.

    In some files, the form for distributed tables is below the line `-- When distributed`, and both
    forms share the header at the top of the file. In all other files, both forms are made from the
    same text.
    """
    header = "".join(_header(text))
    plain, _, other = text.partition(f"\n{DISTRIBUTED_FORM}\n")
    if not distributed:
        return plain.rstrip("\n") + "\n"
    form = header + other.lstrip("\n") if other else text
    return _PARTITION_OF_A_ROW.sub("p_partition_key", _PLAN_CACHE_MODE.sub("", form))


def defined_names(texts: Iterable[str]) -> DefinedNames:
    """Return the functions and views of schema ff that the given SQL creates."""
    found = [definition for text in texts for definition in _DEFINITION.findall(text)]
    return DefinedNames(
        functions=frozenset(name for _, kind, name in found if kind.lower() != "view"),
        replaceable_functions=frozenset(
            name for replace, kind, name in found if replace and kind.lower() != "view"
        ),
        views=frozenset(name for _, kind, name in found if kind.lower() == "view"),
    )


def _is_step(entry: Traversable) -> bool:
    return entry.is_dir() or entry.name.endswith(".sql")


def _read_step(file: Traversable, released: dict[str, str]) -> Step:
    if not (match := _STEP.fullmatch(file.name)):
        raise ValueError(f"schema/{file.name} is not named like 0001_baseline or 0002_color.sql.")
    if file.is_dir():
        text = "\n".join(f"-- {path}\n{_text(part)}" for path, part in _sql_files(file))
    else:
        text = _text(file)
    checksum = _digest(text)
    if released.get(file.name, checksum) != checksum:
        raise StepEdited(
            f"schema/{file.name} was edited after its release (its checksum differs from "
            "schema/CHECKSUMS). Restore it and put the change into a new step."
        )
    markers = set(_markers(text))
    return Step(
        number=int(match[1]),
        name=match[2],
        file=file.name,
        text=text,
        checksum=checksum,
        is_breaking="breaking" in markers,
        is_transactional="no-transaction" not in markers,
        is_released=file.name in released,
    )


def _statements(text: str) -> Iterator[str]:
    start = 0
    for part in _STATEMENT_PART.finditer(text):
        if part["end"]:
            yield text[start : part.end()].strip()
            start = part.end()
    if rest := text[start:].strip():
        yield rest


def _header(text: str) -> Iterator[str]:
    """Yield the lines of the comment at the top of a file."""
    return takewhile(lambda line: line.startswith("--"), text.splitlines(keepends=True))


def _markers(text: str) -> Iterator[str]:
    for line in _header(text):
        if match := _MARKER.fullmatch(line.rstrip()):
            yield match[1]


def _released(file: Traversable) -> dict[str, str]:
    """Return the digests in CHECKSUMS by file name. A line has the format of `sha256sum`."""
    if not file.is_file():
        return {}
    lines = [line.split() for line in _text(file).splitlines() if line.strip()]
    return {name.lstrip("*"): digest for digest, name in lines}


def _sql_files(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    """List the .sql files in a folder and its subfolders, sorted by path."""
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _sql_files(entry, f"{path}/")
        elif entry.name.endswith(".sql"):
            found.append((path, entry))
    return sorted(found, key=lambda item: item[0])


def _text(file: Traversable) -> str:
    # A checkout with Windows line ends contains the same step.
    return file.read_text(encoding="utf-8").replace("\r\n", "\n")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
