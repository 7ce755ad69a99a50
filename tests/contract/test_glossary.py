"""Public names are made of the words of docs/glossary.md, and of ordinary words listed here."""

from __future__ import annotations

import inspect
import re
from enum import EnumMeta

import flowfabric
from flowfabric.core import states

from .sources import PACKAGE, ROOT

# Words that mean in a name what they mean in any program.
ORDINARY_TEXT = """
admin amounts before bytes correlation data day delete facts has hour interval month
numbers parsed reached status tz week
add after all allows and any apply as at by callback capable change changed check
close conclude count create created current dead declare decode describe due error
evaluate every exists explain explained exponential fabric fallback find fixed for forget
found from function gather get graph header id impossible index info infra initial invalid
is issue jitter last let list locality lost many mark match max maximum message mismatch
moment position work
multiplier name never next of on once only open options overriding pending permanent prepare
project random read record register registered remaining report resolve respect reused
satisfied seconds sent set shutdown stage startup stored summarise swept sync text to too tool trace
transient
type unavailable unfinished unsatisfied use using view when window within woken
"""
ORDINARY = frozenset(ORDINARY_TEXT.split())


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def public_names() -> set[str]:
    """Functions, views and tables of the engine, its states, and the Python API."""
    names = {
        path.stem
        for folder in ("functions", "views")
        for path in (PACKAGE / "sql" / folder).rglob("*.sql")
        if not path.name.startswith("_")
    }
    for path in (PACKAGE / "sql" / "schema").rglob("*.sql"):
        names |= set(re.findall(r"^create table ff\.(\w+)", path.read_text(), re.MULTILINE))
    for kind in vars(states).values():
        if isinstance(kind, EnumMeta):
            names |= {str(member.value) for member in kind}
    for name in flowfabric.__all__:
        names.add(name)
        if inspect.isclass(kind := getattr(flowfabric, name)):
            names |= {member for member in vars(kind) if not member.startswith("_")}
    return names


def glossary() -> set[str]:
    """Return the words of the terms that the glossary defines, which stand in bold or as code."""
    text = (ROOT / "docs" / "glossary.md").read_text().replace("back-off", "backoff")
    terms = re.findall(r"\*\*([^*]+)\*\*|`([a-z_]+)`", text)
    return set().union(*(re.findall(r"[a-z]+", " ".join(term).lower()) for term in terms))


def stems(word: str) -> set[str]:
    """Return what a word may be a form of: cancelled of cancel, dependencies of dependency."""
    found = {word}
    for suffix, ends in {
        "s": ("",),
        "es": ("",),
        "ies": ("y",),
        "d": ("",),
        "ed": ("",),
        "ing": ("", "e"),
        "able": ("",),
        "ation": ("e", ""),
        "ition": ("",),
    }.items():
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            found |= {stem + end for end in ends}
            if stem[-1:] == stem[-2:-1]:
                found.add(stem[:-1])
    return found


def test_public_names_are_made_of_the_words_of_the_glossary():
    known = glossary() | ORDINARY
    strange = {
        name: unknown
        for name in public_names()
        if (unknown := {word for word in words_of(name) if not stems(word) & known})
    }
    assert strange == {}


def test_a_word_that_nobody_defined_would_be_found():
    assert not stems("unfurled") & (glossary() | ORDINARY)


def test_no_ordinary_word_is_listed_in_vain():
    used = set().union(*map(words_of, public_names()))
    defined = {word for word in ORDINARY if stems(word) & glossary()}
    assert (ORDINARY - used, defined) == (set(), set())
