"""Durations, arrays and periods of a bound login that stop or delay what serves all namespaces."""

from __future__ import annotations

import json

import asyncpg
import pytest

from support.factories import Engine, new_id, refused

from .conftest import OURS

# Comparisons count a month as 30 days: this is one day. Added to a time, it leaves the range.
A_DAY_OF_MONTHS = "interval '3600000 mon -107999999 days'"
A_MINUTE_OF_MONTHS = "interval '100 years -36000 days 1 min'"
AN_HOUR_OF_DAYS = "interval '36526 days -876623 hours'"


@pytest.fixture
async def ours(login) -> Engine:
    return Engine(await login("bound"), namespace=OURS)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("rate_window", "ff.create_quota('ours', 'hostile', p_rate => 1, p_rate_window => {span})"),
        (
            "rate_window",
            "ff.set_quota('ours', 'plain', null, p_rate => 1, p_rate_window => {span})",
        ),
        (
            "ttl",
            "ff.check_admission(0::smallint, 'ours', 'plain', null, gen_random_uuid(), {span})",
        ),
        ("liveness_ttl", "ff.register_worker('ours', 'w', 'w', null, null, '{{}}', {span})"),
        (
            "version_grace",
            "ff.register_worker('ours', 'w', 'w', null, null, '{{}}', '1 s', "
            "p_version_grace => {span})",
        ),
        (
            "keep",
            "ff.lease_subscription('ours', 's', gen_random_uuid(), 'me', '30 s', p_keep => {span}, "
            "p_cursor => ff.open_cursor(0::smallint))",
        ),
        (
            "resume_delay",
            "ff.suspend_execution(0::smallint, 'ours', gen_random_uuid(), gen_random_uuid(), 1, "
            "gen_random_uuid(), gen_random_uuid(), '{{w}}', '{{0}}', '{{}}', "
            "p_resume_delay => {span})",
        ),
        (
            "lease_ttl",
            "ff.claim_executions(0::smallint, 'ours', 'w', 'w', gen_random_uuid(), null, null, "
            "'{{}}', 1, {span})",
        ),
        (
            "lease_ttl",
            "ff.renew_leases(0::smallint, 'ours', array[gen_random_uuid()], "
            "array[gen_random_uuid()], '{{1}}', array[gen_random_uuid()], {span})",
        ),
        (
            "grant_ttl",
            "ff.issue_claim_grant(0::smallint, 'ours', gen_random_uuid(), sha256(''), 'w', "
            "'w', '{{}}', {span})",
        ),
        ("ttl", "ff.lease_subscription('ours', 's', gen_random_uuid(), 'me', {span})"),
        ("ttl", "ff.ack_subscription('ours', 's', gen_random_uuid(), 1, {span})"),
        ("ttl", "ff.lease_webhook('ours', 's', gen_random_uuid(), 'me', {span})"),
        ("window", "ff.read_traffic(0::smallint, 'ours', {span})"),
    ],
)
async def test_no_duration_with_months_is_taken(ours, keeper, field, call):
    """One was, as the window of a rate. It stopped ff.sweep_gates for everybody. Another one was a
    lease of decades."""
    await keeper.execute("select ff.create_quota($1, 'plain', p_concurrency => 5)", OURS)
    # The last one has no months, but leaves the calendar on the way.
    for span in (A_DAY_OF_MONTHS, A_MINUTE_OF_MONTHS, AN_HOUR_OF_DAYS):
        with refused("WF001", field=field):
            await ours.connection.fetch(f"select * from {call.format(span=span)}")


# Arguments of a claim, the field that is refused, and why.
TOO_MANY = [
    ({"lanes": "array_fill('a'::text, array[1001])"}, "lanes", "at most 1000 names"),
    ({"tasks": "array_fill('a'::text, array[10001])"}, "tasks", "at most 10000 names"),
    ({"capabilities": "array_fill('a'::text, array[257])"}, "capabilities", "at most 256 tokens"),
    ({"code_versions": "array_fill('a'::text, array[102])"}, "code_versions", "at most 101"),
    ({"unserved": "array_fill(1::bigint, array[1001])"}, "unserved", "at most 1000 routes"),
    (
        {
            "tasks": "array_fill('a'::text, array[1001])",
            "code_versions": "array_fill('a'::text, array[100])",
        },
        "code_versions",
        "tasks times code versions must be at most 100000",
    ),
]
CLAIM = {
    "partition_key": "0::smallint",
    "worker_id": "'w'",
    "worker_instance_id": "'w'",
    "claim_id": "gen_random_uuid()",
    "limit": "1",
    "lease_ttl": "'30 s'",
}


@pytest.mark.parametrize(("function", "more"), [("find_work", {}), ("claim_executions", CLAIM)])
async def test_a_claim_names_a_bounded_number_of_routes(ours, function, more):
    for many, field, problem in TOO_MANY:
        given = {
            "namespace": "'ours'", "lanes": "null", "tasks": "null", "capabilities": "'{}'",
        } | more | many  # fmt: skip
        call = ", ".join(f"p_{name} => {value}" for name, value in given.items())
        with pytest.raises(asyncpg.PostgresError) as caught:
            await ours.connection.fetch(f"select * from ff.{function}({call})")
        detail = json.loads(caught.value.detail)
        assert (caught.value.sqlstate, detail["field"]) == ("WF001", field)
        assert problem in detail["problem"]


async def test_no_period_of_a_budget_ends_before_it_begins(keeper):
    """One did: a length with a fraction of a second was rounded down, and drifted into the past.
    Such a budget was due all the time, before the budgets of all other namespaces."""
    for days in (0, 1, 7, 3000):
        for length in ("60.49 s", "61 s", "1 min 0.000001 s", "3660 days", "90.5 s"):
            left = await keeper.fetchval(
                "select x.next > t.now and x.next <= t.now + $2::text::interval from "
                "(select now() as now) t cross join lateral (select ff._next_reset('interval', "
                "null, $2::text::interval, t.now - $1::integer * interval '1 day', t.now) as next) "
                "x",
                *(days, length),
            )
            assert left, (days, length)


async def test_no_array_of_another_form_gets_further_than_its_check(ours):
    for documents in ('[0:0]={"{}"}', '[3:4]={"{}","{}"}'):
        with refused("WF001", field="documents"):
            await ours.connection.fetch(
                "select * from ff.register_signal_schemas($1::text::jsonb[])", documents
            )
    for names, numbers in (("{{a,b}}", "{{0,0}}"), ("{a,b}", "{{0,0}}"), ("{{a,b}}", "{0,0}")):
        with refused("WF001"):
            await ours.connection.fetch(
                "select * from ff.suspend_execution(0::smallint, $1, $2, $2, 1, $2, $2, "
                "$3::text::text[], $4::text::integer[], '{}')",
                *(OURS, new_id(), names, numbers),
            )
