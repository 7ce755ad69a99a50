"""The functions in their distributed forms, on plain PostgreSQL: FLOWFABRIC_TEST_FORMS=distributed
loads them into the template of the tests, so that any test may run over either form."""

from __future__ import annotations

import os
from pathlib import Path

from flowfabric.db.grants import grant_all
from flowfabric.db.library import package_source
from flowfabric.db.migrate import RECORD_LIBRARY

FORMS = "FLOWFABRIC_TEST_FORMS"
_HERE = Path(__file__).parent


def are_distributed() -> bool:
    """Return whether this run is over the distributed forms; refuse an unknown word."""
    word = os.environ.get(FORMS, "plain")
    if word not in ("plain", "distributed"):
        raise ValueError(f"{FORMS} must be plain or distributed, not {word!r}.")
    return word == "distributed"


def distributed_library() -> list[str]:
    """Return the statements that change a migrated database to the distributed forms."""
    plain, library = package_source().library(), package_source().library(distributed=True)
    changed = [file.text for file in library.files if file not in plain.files]
    return [
        *changed,
        grant_all(library),
        "insert into ff.meta (name, value) values ('distributed', 'true')",
        RECORD_LIBRARY.format(version=library.version, hash=library.hash),
    ]


def witness_of_pairs() -> str:
    """Return what the witness has beside support/witness.sql in a distributed database."""
    return (_HERE / "witness_pairs.sql").read_text(encoding="utf-8")
