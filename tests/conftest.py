"""The fixtures of all tests that need a database; support/database.py tells how to use them.
support/isolation.py tells where they run, support/proofs.py what the slow ones run."""

from __future__ import annotations

from support.clock import clock
from support.cluster import cluster
from support.compiled import pytest_sessionstart
from support.database import conn, databases, db, template
from support.factories import engine, make
from support.foreign import foreign_transactions
from support.isolation import (
    loop,
    no_tasks_left,
    nowhere,
    patient_trial,
    pytest_collection,
    pytest_collection_finish,
    pytest_sessionfinish,
    pytest_xdist_auto_num_workers,
)
from support.proofs import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
    sized,
)

__all__ = [
    "clock",
    "cluster",
    "conn",
    "databases",
    "db",
    "engine",
    "foreign_transactions",
    "loop",
    "make",
    "no_tasks_left",
    "nowhere",
    "patient_trial",
    "pytest_addoption",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_sessionfinish",
    "pytest_sessionstart",
    "pytest_xdist_auto_num_workers",
    "sized",
    "template",
]
