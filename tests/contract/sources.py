"""The SQL and Python files of the package, read the way the contract tests need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from flowfabric.db.library import DISTRIBUTED_FORM, form_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "flowfabric"
SQL = PACKAGE / "sql"

HEADER_FIELDS = ("Moves", "Refuses", "Locks", "Repeat", "Rights")
_NOISE = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<text>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*")""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class SqlFile:
    """One file of `sql/`, or one of its two forms."""

    path: Path
    is_distributed: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def id(self) -> str:
        path = str(self.path.relative_to(SQL))
        return f"{path} when distributed" if self.is_distributed else path

    @property
    def kind(self) -> str:
        """schema, shared, functions or views"""
        return self.path.relative_to(SQL).parts[0]

    @property
    def room(self) -> str:
        """The folder: a noun, or shared."""
        return self.path.parent.name

    @cached_property
    def text(self) -> str:
        return form_of(self.path.read_text(encoding="utf-8"), self.is_distributed)

    @cached_property
    def code(self) -> str:
        """The text without comments; texts become '' and quoted names \"\"."""
        return _NOISE.sub(lambda m: "" if m["comment"] else "''" if m["text"] else '""', self.text)

    @cached_property
    def statements(self) -> str:
        """The text without comments, its literals kept."""
        return _NOISE.sub(lambda m: "" if m["comment"] else m[0], self.text)

    @cached_property
    def header(self) -> list[str]:
        """The comment lines at the top, without their dashes."""
        lines = []
        for line in self.text.splitlines():
            if not line.startswith("--"):
                break
            lines.append(line[2:].removeprefix(" "))
        return lines

    @cached_property
    def fields(self) -> dict[str, str]:
        """The fields of the header, each as one line."""
        found: dict[str, str] = {}
        field = None
        for line in self.header:
            if match := re.match(r"([A-Z][a-z]+):\s+(.*)", line):
                field = match[1]
                found[field] = match[2]
            elif field and line.startswith("  "):
                found[field] += " " + line.strip()
            else:
                field = None
        return found

    @property
    def transition_numbers(self) -> set[str]:
        """The T-numbers that the header names."""
        return set(re.findall(r"\bT\d+\b", "\n".join(self.header)))


@cache
def sql_files(*kinds: str) -> tuple[SqlFile, ...]:
    """The files of these kinds; one with two forms comes twice."""
    files = [file for path in sorted(SQL.rglob("*.sql")) if (file := SqlFile(path)).kind in kinds]
    return tuple(form for file in files for form in forms(file))


def forms(file: SqlFile) -> tuple[SqlFile, ...]:
    """The plain form, then the distributed one, if the file has one."""
    if DISTRIBUTED_FORM in file.path.read_text(encoding="utf-8").splitlines():
        return (file, SqlFile(file.path, is_distributed=True))
    return (file,)


def files_with_two_forms() -> tuple[tuple[SqlFile, SqlFile], ...]:
    return tuple(
        (file, other)
        for file in sql_files("shared", "functions")
        if not file.is_distributed
        for other in forms(file)[1:]
    )


def distributed_forms() -> tuple[SqlFile, ...]:
    """The functions as they are when tables are distributed: the second form, or the only one."""
    return tuple(
        forms(file)[-1] for file in sql_files("shared", "functions") if not file.is_distributed
    )


def public_functions() -> tuple[SqlFile, ...]:
    """The functions that a client calls."""
    return tuple(file for file in sql_files("functions") if not file.name.startswith("_"))


def helpers() -> tuple[SqlFile, ...]:
    """The private functions, which only other functions call."""
    files = sql_files("shared", "functions")
    return tuple(file for file in files if file.name.startswith("_"))


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))
