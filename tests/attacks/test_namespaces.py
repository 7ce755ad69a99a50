"""Every public function, from the catalogue: who may name which namespace."""

from __future__ import annotations

import asyncpg
import pytest

from .conftest import OURS, THEIRS
from .test_rights import FUNCTIONS

FORBIDDEN = "WF501"
# Without a namespace, each for a reason. They say nothing of a tenant and act by the clock only.
HOUSEKEEPING = {
    "cancel_backlog",
    "cancel_siblings",
    "expire_executions",
    "expire_leases",
    "expire_streams",
    "expire_suspensions",
    "expire_waitpoints",
    "notice_signals",
    "promote_delayed",
    "reap_grants",
    "reconcile_siblings",
    "reset_due_budgets",
    "resolve_wakes",
    "roll_up_events",
    "balance_gates",
    "sweep_gates",
    "sweep_workers",
    "trim_events",
    "trim_executions",
    "trim_keys",
    "unblock_executions",
}
# A position in the log, and a time: read_events asks for the namespace. And for reconcilers: when
# something is due in a partition, whatever it is.
# use_api_token answers only for the namespace that its login is bound to. The id of a schema is the
# hash of its document, for all namespaces: who registers one learns what it knew.
HARMLESS = {
    "find_due",
    "now",
    "open_cursor",
    "register_signal_schemas",
    "server_time",
    "use_api_token",
}
# For operators only: EXECUTE is not granted to anybody else.
OPERATORS = {
    "list_hmac_keys",
    "list_namespace_grants",
    "raise_partitions",
    "revoke_namespace",
    "rotate_hmac_key",
    "seed_hmac_key",
}


async def sqlstate(connection, row, namespace: str | None) -> str | None:
    """What a call answers with this namespace and nothing else: the SQLSTATE, or None."""
    arguments = []
    for name, kind in zip(row["names"] or (), row["types"], strict=True):
        if name == "p_namespace":
            arguments.append(f"{name} => cast($1 as text)")
        elif name == "p_namespaces":
            arguments.append(f"{name} => array['{OURS}', cast($1 as text)]")
        elif name == "p_worker_instance_ids":
            arguments.append(f"{name} => array['w', 'w']")
        elif name == "p_partition_key":
            arguments.append(f"{name} => 0::smallint")
        else:
            arguments.append(f"{name} => cast(null as {kind})")
    try:
        async with connection.transaction():
            await connection.fetch(f"select ff.{row['name']}({', '.join(arguments)})", namespace)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    return None


@pytest.fixture
async def named(keeper):
    """The public functions that take a namespace, or several."""
    rows = await keeper.fetch(FUNCTIONS)
    public = [row for row in rows if not row["name"].startswith("_")]
    named = [row for row in public if {"p_namespace", "p_namespaces"} & {*(row["names"] or ())}]
    assert {row["name"] for row in public} - {row["name"] for row in named} == (
        HOUSEKEEPING | HARMLESS | OPERATORS
    )
    for row in public:
        if row["name"] in HOUSEKEEPING:
            assert {*row["names"]} <= {"p_partition_key", "p_limit"}, row["name"]
    return [row for row in named if row["name"] != "grant_namespace"]


async def test_a_bound_login_names_its_own_namespace_only(login, named):
    bound = await login("bound")
    for row in named:
        for namespace in (THEIRS, None, ""):
            if namespace is None and "p_namespaces" in row["names"]:
                continue  # answered for each item
            answer = await sqlstate(bound, row, namespace)
            assert answer in (FORBIDDEN, "42501"), (row["name"], namespace, answer)
        answer = await sqlstate(bound, row, OURS)
        assert answer != FORBIDDEN, row["name"]


async def test_an_application_names_any_namespace_but_not_all(login, named):
    application = await login("application")
    for row in named:
        if "p_namespace" in row["names"]:
            answer = await sqlstate(application, row, None)
            assert answer in (FORBIDDEN, "42501"), (row["name"], answer)
        assert await sqlstate(application, row, OURS) != FORBIDDEN, row["name"]


async def test_an_operator_and_the_owner_name_all(login, named):
    for user in ("operator", "keeper"):
        connection = await login(user)
        for row in named:
            for namespace in (None, OURS, THEIRS):
                answer = await sqlstate(connection, row, namespace)
                assert answer not in (FORBIDDEN, "42501"), (user, row["name"], namespace)


async def test_a_stranger_calls_nothing(login, named):
    stranger = await login("stranger")
    for row in named:
        assert await sqlstate(stranger, row, OURS) == "42501", row["name"]
