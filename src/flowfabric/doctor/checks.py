"""The checks: every file of `sql/doctor`, split into its header and its query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import PurePosixPath

from flowfabric.db.inspection import paths_in, text_of

_FIELD = re.compile(r"(Holds|Reads|Remedy):\s+(.*)")


class Reads(StrEnum):
    """What a check reads. This decides whether the check can be narrowed to some executions."""

    EXECUTIONS = "executions"
    DATABASE = "the database"
    """Cannot be narrowed, but is always cheap: the check uses an index."""
    EVERYTHING = "everything"
    """Cannot be narrowed and is slow. The check runs only if all executions are examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One invariant or one check of the installation."""

    name: str
    title: str
    meaning: str
    remedy: str
    holds: str
    reads: Reads
    text: str

    @property
    def is_eventual(self) -> bool:
        """Whether the invariant may be violated for a while, until a reconciler runs."""
        return not self.holds.startswith("always")


@cache
def installation_checks() -> tuple[Check, ...]:
    """Return the checks of the installation, X01 to X08."""
    return tuple(map(_read, paths_in("installation")))


@cache
def invariants() -> tuple[Check, ...]:
    """Return the invariants of the data."""
    return tuple(map(_read, paths_in("invariants")))


def find_check(name: str) -> Check | None:
    return next(
        (check for check in (*installation_checks(), *invariants()) if check.name == name), None
    )


def _read(path: str) -> Check:
    header, body = _parts(text_of(path))
    paragraphs = [" ".join(lines) for lines in _paragraphs(header)]
    fields = _fields(header)
    return Check(
        name=PurePosixPath(path).stem,
        title=paragraphs[0],
        meaning=paragraphs[1],
        remedy=fields["Remedy"],
        holds=fields.get("Holds", "always"),
        reads=Reads(fields.get("Reads", Reads.DATABASE)),
        text=body,
    )


def _parts(text: str) -> tuple[list[str], str]:
    """Return the header of a file, as lines without the dashes, and its query."""
    lines = text.splitlines()
    end = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return [line[2:].removeprefix(" ") for line in lines[:end]], "\n".join(lines[end:])


def _paragraphs(header: list[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in [*header, ""]:
        if line:
            paragraph.append(line)
        elif paragraph:
            yield paragraph
            paragraph = []


def _fields(header: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = None
    for line in header:
        if match := _FIELD.fullmatch(line):
            name = match[1]
            fields[name] = match[2]
        elif name and line.startswith("  "):
            fields[name] += " " + line.strip()
        else:
            name = None
    return fields
