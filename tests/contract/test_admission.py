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
        "_settle_overdue",
        "complete_executions",
        "fail_executions",
        "revoke_lease",
    }
    # An admitted candidate that ends before it is leased gives back what it took.
    assert calling("_release_gates") == ends | {"_claim_in_rounds"}
    # And closes the stream (V03): no frame may follow the end of its lease.
    assert calling("_close_streams") == ends


def test_every_function_that_leases_admits_first():
    # _claim_fresh leaves executions with limits to _claim_in_rounds.
    leasing = {
        name for name, code in FUNCTIONS.items() if re.search(r"\bownership = 'leased',\n", code)
    }
    assert leasing == {"_lease_executions", "_claim_fresh"}
    assert FUNCTIONS["_claim_fresh"].count("x.quota_ids is null and x.budget_ids is null") == 2
    admitting = calling("_check_admitted") | calling("_admit_candidates")
    assert calling("_lease_executions") <= admitting


def test_few_functions_lock_gates():
    locking = {
        name
        for name, code in FUNCTIONS.items()
        if re.search(r"from ff\.gate g\b[^;]*?\bfor (no key )?update", code)
    }
    assert locking == {"_lock_gates", "_lock_quota_gates"}
    assert calling("_lock_gates") == {
        "_admit_candidates",
        "_fold_releases",
        "check_admission",
        "release_admission",
        "sweep_gates",
    }


def test_a_claim_reads_budgets_and_never_locks_them():
    for name in ("_admit_candidates", "_park_refused", "_park_more", "_fold_releases"):
        assert not re.search(r"ff\.budget\b[^;]*?\bfor (no key )?(update|share)", FUNCTIONS[name])
