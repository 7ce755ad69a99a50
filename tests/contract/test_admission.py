"""Who takes slots of gates, who gives them back, and who may lock a gate (Q09, Q10)."""

from __future__ import annotations

import re

from .sources import sql_files

# Both forms of a function that has two.
FUNCTIONS: dict[str, str] = {}
for _file in sql_files("shared", "functions"):
    FUNCTIONS[_file.name] = FUNCTIONS.get(_file.name, "") + _file.statements


def calling(name: str) -> set[str]:
    return {caller for caller, code in FUNCTIONS.items() if f"ff.{name}(" in code} - {name}


def test_every_function_that_ends_a_lease_gives_its_slots_back():
    ends = {
        name
        for name, code in FUNCTIONS.items()
        if re.search(r"\blease_id = null,", code)
        or re.search(r"ownership = 'lease_expired_reclaimable',\n", code)
    } - {"_close_streams"}  # which clears the lease of the stream, not that of the execution
    assert ends == {
        "_end_executions",
        "_expire_leases",
        "_interrupt_executions",
        "_settle_overdue_executions",
        "complete_executions",
        "fail_executions",
        "revoke_lease",
    }
    # An admitted candidate that ends before it is leased gives back what it took.
    assert calling("_release_gates") == ends | {"_claim_in_rounds"}
    assert calling("_release_slots") == {"_release_gates", "complete_executions"}
    # And closes the stream (V03): no frame may follow the end of its lease.
    assert calling("_close_streams") == ends


def test_every_function_that_leases_admits_first():
    leasing = {
        name for name, code in FUNCTIONS.items() if re.search(r"\bownership = 'leased',\n", code)
    }
    assert leasing == {"_lease_executions", "_claim_fresh"}
    assert calling("_take_slots") == {"_claim_fresh"}
    admitting = calling("_admit_with_grant") | calling("_admit_to_gates")
    assert calling("_lease_executions") <= admitting


def test_few_functions_lock_gates():
    locking = {
        name
        for name, code in FUNCTIONS.items()
        if re.search(r"from ff\.gate g\b[^;]*?\bfor (no key )?update", code)
    }
    assert locking == {"_lock_gates", "_lock_quota_gates"}
    lock_first = {
        "_admit_to_gates",
        "_fold_releases",
        "_park_more",
        "balance_gates",
        "check_admission",
        "release_admission",
        "sweep_gates",
    }
    assert calling("_lock_gates") == lock_first
    # The update of _take_slots is its lock, in id order; _count_starts is called under the lock.
    writing = {name for name, code in FUNCTIONS.items() if "update ff.gate g set" in code}
    assert writing == (
        lock_first - {"_park_more", "balance_gates"}
        | {"_take_slots", "_count_starts", "_apply_quota"}
    )
    assert calling("_lock_quota_gates") >= {"_apply_quota"}
    assert "order by u.id offset 0" in FUNCTIONS["_take_slots"]


def test_a_claim_reads_budgets_and_never_locks_them():
    for name in (
        "_admit_to_gates",
        "_fold_releases",
        "_park_more",
        "_park_in_lines",
        "_take_slots",
    ):
        assert not re.search(r"ff\.budget\b[^;]*?\bfor (no key )?(update|share)", FUNCTIONS[name])
