"""Budgets: creating, reporting usage, spending, releasing, resetting, raising and reading them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from support.admission import Admission
from support.database import home
from support.factories import Engine, refused


@pytest.fixture
def admission(engine):
    return Admission(engine)


async def create(admission, hard=100, soft=None, **changes):
    given = {
        "budget": "monthly",
        "key": None,
        "dimensions": ["tokens"],
        "hard_limits": [hard],
        "soft_limits": [soft],
    }
    return await admission.one("create_budget", **(given | changes))


async def report(admission, amount, dimension="tokens", **changes):
    given = {"budget": "monthly", "key": None, "dimensions": [dimension], "amounts": [amount]}
    return await admission.one("report_usage_admin", **(given | changes))


async def spend(admission, execution_id, amount, **changes):
    return await admission.one(
        "record_spend",
        budget="monthly",
        key=None,
        execution_id=execution_id,
        dimensions=["tokens"],
        amounts=[amount],
        **changes,
    )


async def release(admission, execution_id):
    return await admission.one(
        "release_budget", budget="monthly", key=None, execution_id=execution_id
    )


async def reset_due(admission):
    return await admission.engine.connection.fetchval("select handled from ff.reset_due_budgets()")


async def usage(admission):
    return json.loads((await admission.status())["usage"])["tokens"]


async def test_a_budget_is_created_once(admission):
    made = await create(admission)
    again = await create(admission, hard=7)
    assert (made["outcome"], again["outcome"]) == ("created", "already_satisfied")
    assert made["budget_id"] == again["budget_id"]
    assert json.loads((await admission.status())["hard_limits"]) == {"tokens": 100}


async def test_a_budget_that_does_not_exist_is_not_found(admission):
    for call in (
        admission.status(),
        admission.one("reset_budget", budget="monthly"),
        report(admission, 1),
        spend(admission, uuid4(), 1),
        release(admission, uuid4()),
    ):
        with refused("WF307"):
            await call


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("hard_limits", {"hard_limits": [1, 2]}),
        ("soft_limits", {"soft_limits": [1, 2]}),
        ("hard_limits", {"hard_limits": [0]}),
        ("soft_limits", {"soft_limits": [101]}),
        ("dimensions", {"dimensions": ["a", "a"], "hard_limits": [1, 1], "soft_limits": None}),
        ("dimensions", {"dimensions": [], "hard_limits": [], "soft_limits": None}),
        ("period", {"period": "fortnight"}),
        ("period_length", {"period": "interval"}),
        ("period_zone", {"period": "day", "period_zone": "Mars/Olympus"}),
        ("on_exceed", {"on_exceed": "explode"}),
        ("budget", {"budget": "two words"}),
    ],
)
async def test_a_bad_budget_is_refused_by_field(admission, field, changes):
    with refused("WF001", field=field):
        await create(admission, **changes)


async def test_usage_below_at_and_above_the_limits(admission):
    await create(admission, hard=100, soft=80)

    answers = [await report(admission, amount) for amount in (60, 25, 50, 15)]

    assert [answer["outcome"] for answer in answers] == [
        "ok",
        "soft_breach",
        "hard_breach",
        "soft_breach",
    ]
    breach = json.loads(answers[2]["detail"])
    assert (breach["dimension"], breach["usage"], breach["limit"]) == ("tokens", 85, 100)
    status = await admission.status()
    assert json.loads(status["usage"]) == {"tokens": 100}
    assert (status["breach_count"], status["soft_breach_count"]) == (1, 2)
    assert status["last_breach_dimension"] == "tokens"


async def test_one_breached_dimension_refuses_all(admission):
    await create(admission, dimensions=["tokens", "usd"], hard_limits=[100, 5], soft_limits=None)
    answer = await report(admission, None, dimensions=["tokens", "usd"], amounts=[10, 6])
    assert (answer["outcome"], json.loads(answer["detail"])["dimension"]) == ("hard_breach", "usd")
    assert json.loads((await admission.status())["usage"]) == {"tokens": 0, "usd": 0}


async def test_a_report_with_the_same_key_is_applied_once(admission):
    await create(admission)
    assert (await report(admission, 60, dedup_key="a"))["outcome"] == "ok"
    again = await report(admission, 60, dedup_key="a")
    assert (again["outcome"], json.loads(again["detail"])) == ("already_applied", {"first": "ok"})
    assert await usage(admission) == 60


async def test_a_key_is_free_again_after_a_day(admission, clock):
    await clock.freeze()
    await create(admission)
    await report(admission, 10, dedup_key="a")
    await clock.advance(hours=24)
    assert (await report(admission, 10, dedup_key="a"))["outcome"] == "ok"


async def test_a_breach_keeps_no_key_so_a_repeat_after_the_reset_is_applied(admission):
    await create(admission)
    await report(admission, 90)
    assert (await report(admission, 20, dedup_key="a"))["outcome"] == "hard_breach"
    await admission.one("reset_budget", budget="monthly")
    assert (await report(admission, 20, dedup_key="a"))["outcome"] == "ok"
    assert await usage(admission) == 20


async def test_keys_belong_to_their_budget(admission):
    await create(admission)
    await create(admission, key="acme")
    await report(admission, 10, dedup_key="a")
    assert (await report(admission, 10, dedup_key="a", key="acme"))["outcome"] == "ok"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("amounts", {"dimensions": ["tokens"], "amounts": [1, 2]}),
        ("dimensions", {"dimensions": ["tokens", "tokens"], "amounts": [1, 2]}),
        ("usage", {"amounts": [-1]}),
        ("usage", {"dimensions": [], "amounts": []}),
        ("usage", {"amounts": [None]}),
    ],
)
async def test_bad_usage_is_refused_by_field(admission, field, changes):
    await create(admission)
    with refused("WF001", field=field):
        await report(admission, 1, **changes)


async def test_a_sum_out_of_range_is_refused_and_changes_nothing(admission):
    await create(admission, hard=None)
    await report(admission, 2**63 - 1)
    with refused("WF001", field="usage"):
        await report(admission, 1)
    assert await usage(admission) == 2**63 - 1


async def test_a_reset_zeroes_usage_and_keeps_the_counters(admission):
    await create(admission)
    await report(admission, 100)
    await report(admission, 1)
    assert (await admission.status())["is_shut"]
    await admission.one("reset_budget", budget="monthly", actor="ann")
    status = await admission.status()
    assert json.loads(status["usage"]) == {"tokens": 0}
    assert json.loads(status["refused"]) == {"tokens": 0}
    assert (status["breach_count"], status["last_breach_at"]) == (1, None)
    assert (status["is_shut"], status["changed_by"]) == (False, "ann")


async def test_what_is_refused_shuts_the_budget(admission):
    """Else usage would stay just below the limit, and each new run would be refused in vain."""
    await create(admission)
    await report(admission, 90)
    assert not (await admission.status())["is_shut"]
    await report(admission, 20)
    assert (await admission.status())["is_shut"]


async def test_a_raised_limit_opens_the_budget_until_it_is_lifted(admission):
    await create(admission)
    await report(admission, 100)
    await admission.one(
        "raise_budget", budget="monthly", key=None, dimensions=["tokens"], hard_limits=[150]
    )
    status = await admission.status()
    assert (status["is_shut"], status["raised"]) == (False, ["tokens"])
    assert (await report(admission, 50))["outcome"] == "ok"
    assert (await admission.one("lift_budget", budget="monthly"))["outcome"] == "lifted"
    assert (await admission.status())["is_shut"]


@pytest.mark.parametrize("how", ["raise", "lift", "declare"])
async def test_with_another_limit_what_was_refused_is_forgotten(admission, how):
    """Each of the refused reports fits now, although their sum does not."""
    await admission.budget(tokens=100 if how == "lift" else 40)
    if how == "lift":
        await admission.one(
            "raise_budget", budget="monthly", key=None, dimensions=["tokens"], hard_limits=[40]
        )
    await report(admission, 30)
    for _ in range(5):
        assert (await report(admission, 20))["outcome"] == "hard_breach"
    assert (await admission.status())["is_shut"]
    if how == "declare":
        await admission.budget(tokens=100)
    elif how == "lift":
        await admission.one("lift_budget", budget="monthly")
    else:
        await admission.one(
            "raise_budget", budget="monthly", key=None, dimensions=["tokens"], hard_limits=[100]
        )
    assert not (await admission.status())["is_shut"]
    assert (await report(admission, 20))["outcome"] == "ok"


async def test_code_does_not_change_a_raised_limit(admission):
    await admission.budget(tokens=100)
    await admission.one(
        "raise_budget", budget="monthly", key=None, dimensions=["tokens"], hard_limits=[500]
    )
    await admission.budget(tokens=50)
    assert json.loads((await admission.status())["hard_limits"]) == {"tokens": 500}
    await admission.one("lift_budget", budget="monthly")
    assert json.loads((await admission.status())["hard_limits"]) == {"tokens": 50}


async def test_a_budget_that_warns_refuses_nothing(admission):
    await create(admission, on_exceed="warn")
    assert (await report(admission, 150))["outcome"] == "soft_breach"
    status = await admission.status()
    assert (json.loads(status["usage"]), status["is_shut"]) == ({"tokens": 150}, False)


async def test_a_budget_that_warns_does_so_above_its_raised_limit(admission):
    await create(admission, on_exceed="warn")
    await admission.one(
        "raise_budget", budget="monthly", key=None, dimensions=["tokens"], hard_limits=[150]
    )
    assert (await report(admission, 150))["outcome"] == "ok"
    assert (await report(admission, 1))["outcome"] == "soft_breach"


async def test_what_was_spent_is_taken_back_for_one_execution(admission):
    await create(admission)
    mine, other = uuid4(), uuid4()
    for id_, amount in ((mine, 10), (mine, 20), (other, 5)):
        assert (await spend(admission, id_, amount))["outcome"] == "ok"

    released = await release(admission, mine)

    assert json.loads(released["released"]) == {"tokens": 30}
    assert await usage(admission) == 5
    assert json.loads((await release(admission, mine))["released"]) == {}
    assert await usage(admission) == 5


async def test_what_is_taken_back_opens_the_budget_for_what_was_refused_before(admission):
    await create(admission)
    mine = uuid4()
    await spend(admission, mine, 90)
    for _ in range(10):
        assert (await spend(admission, uuid4(), 20))["outcome"] == "hard_breach"
    assert (await admission.status())["is_shut"] is True
    await release(admission, uuid4())
    assert (await admission.status())["is_shut"] is True, "nothing was taken back"
    await release(admission, mine)
    assert (await admission.status())["is_shut"] is False
    assert (await spend(admission, uuid4(), 20))["outcome"] == "ok"


async def test_a_spend_with_the_same_key_is_applied_once(admission):
    await create(admission)
    id_ = uuid4()
    await spend(admission, id_, 10, dedup_key="a")
    assert (await spend(admission, id_, 10, dedup_key="a"))["outcome"] == "already_applied"
    assert json.loads((await release(admission, id_))["released"]) == {"tokens": 10}


async def test_a_refused_spend_leaves_nothing_to_take_back(admission):
    await create(admission)
    id_ = uuid4()
    assert (await spend(admission, id_, 101))["outcome"] == "hard_breach"
    assert json.loads((await release(admission, id_))["released"]) == {}


async def test_a_release_after_a_reset_takes_nothing_from_the_new_period(admission):
    await create(admission)
    mine, other = uuid4(), uuid4()
    await spend(admission, mine, 60)
    await admission.one("reset_budget", budget="monthly")
    await spend(admission, other, 40)
    await release(admission, mine)
    assert await usage(admission) == 40


async def test_what_was_spent_in_a_past_period_is_deleted(admission, engine):
    await create(admission)
    old, new = uuid4(), uuid4()
    await spend(admission, old, 60)
    await reset_due(admission)
    assert await engine.connection.fetchval("select count(*) from ff.budget_ledger") == 1
    await admission.one("reset_budget", budget="monthly")
    await spend(admission, new, 40)
    await reset_due(admission)
    rows = await engine.connection.fetch("select execution_id from ff.budget_ledger")
    assert [row["execution_id"] for row in rows] == [new]


async def test_what_was_spent_is_deleted_thirty_days_after_the_last_spend(admission, engine, clock):
    """A budget without a period has no past periods."""
    await clock.freeze()
    await create(admission, hard=1000)
    old, busy = uuid4(), uuid4()
    await spend(admission, old, 60)
    await spend(admission, busy, 30)
    await clock.advance(days=29)
    await spend(admission, busy, 3)
    await clock.advance(days=1)
    assert await reset_due(admission) == 1
    assert json.loads((await release(admission, old))["released"]) == {}
    assert await usage(admission) == 93, "what was used stays used"
    assert json.loads((await release(admission, busy))["released"]) == {"tokens": 33}
    assert await usage(admission) == 60


async def test_a_pass_that_leaves_expired_reports_asks_for_the_next(admission, engine, clock):
    """Otherwise reports come faster than they are deleted."""
    await clock.freeze()
    await create(admission, hard=None)
    await report(admission, 1, dedup_key="a")
    await engine.connection.execute(
        "insert into ff.budget_report (budget_id, dedup_key, outcome, expires_at) "
        "select budget_id, 'k' || n, outcome, expires_at "
        "from ff.budget_report, generate_series(1, 204) n"
    )
    await clock.advance(hours=24)
    passes = "select handled from ff.reset_due_budgets($1)"
    handled = [await engine.connection.fetchval(passes, 10) for _ in range(4)]
    assert handled == [10, 10, 1, 0]
    assert await engine.connection.fetchval("select count(*) from ff.budget_report") == 0


async def test_spends_and_releases_at_once_meet_no_deadlock(db, admission):
    await create(admission, hard=10_000)
    ids = [uuid4() for _ in range(3)]

    async def act(number: int) -> None:
        mine = Admission(Engine(await db.connect()))
        for turn in range(10):
            await spend(mine, ids[(number + turn) % 3], 1)
            await release(mine, ids[(number + 2 * turn) % 3])

    await asyncio.gather(*(act(number) for number in range(4)))
    for one in ids:
        await release(admission, one)
    assert await usage(admission) == 0


async def test_a_hundred_reporters_and_a_reset_resume_each_suspended_execution_once(
    db, admission, engine
):
    budget = await admission.budget(tokens=60, on_exceed="suspend")
    await admission.submit(100, budgets=[budget])
    leases = await engine.claim(100)

    async def report_some(part) -> list[str]:
        mine = Admission(Engine(await db.connect()))
        return [(await mine.report(lease, {"tokens": 3})).word for lease in part]

    async def reset() -> None:
        await Admission(Engine(await db.connect())).one("reset_budget", budget="monthly")

    *words, _ = await asyncio.gather(*(report_some(leases[n::5]) for n in range(5)), reset())
    told = [word for part in words for word in part]
    assert set(told) == {"ok", "suspended"}
    assert 0 < told.count("ok") <= 40
    resumed = []
    # Whether or not the reset came before the last report: one more opens the budget.
    for _ in range(2):
        resumed += await engine.claim(100)
        await admission.one("reset_budget", budget="monthly")
    resumed += await engine.claim(100)
    assert {lease.claim_kind for lease in resumed} == {"resumed"}
    assert len(resumed) == len({lease.execution_id for lease in resumed}) == told.count("suspended")


@pytest.mark.parametrize(
    ("period", "zone", "first"),
    [
        ("hour", None, datetime(2026, 3, 28, 23, tzinfo=UTC)),
        ("day", "UTC", datetime(2026, 3, 29, tzinfo=UTC)),
        ("day", "Europe/Madrid", datetime(2026, 3, 28, 23, tzinfo=UTC)),
        ("week", "UTC", datetime(2026, 3, 30, tzinfo=UTC)),
        # the clocks go forward on the 29th
        ("week", "Europe/Madrid", datetime(2026, 3, 29, 22, tzinfo=UTC)),
        ("month", "UTC", datetime(2026, 4, 1, tzinfo=UTC)),
        ("month", "Europe/Madrid", datetime(2026, 3, 31, 22, tzinfo=UTC)),
    ],
)
async def test_a_period_of_the_calendar_ends_in_its_zone(admission, clock, period, zone, first):
    await clock.freeze(datetime(2026, 3, 28, 22, 30, tzinfo=UTC))
    made = await create(admission, period=period, period_zone=zone)
    assert made["next_reset_at"] == first


async def test_a_reset_by_time_keeps_its_phase(admission, clock):
    start = await clock.freeze()
    await create(admission, period="interval", period_length=timedelta(hours=1))
    await report(admission, 100)
    await clock.advance(hours=2, minutes=20)
    assert await reset_due(admission) == 1
    status = await admission.status()
    assert status["next_reset_at"] == start + timedelta(hours=3)
    assert (json.loads(status["usage"]), status["is_shut"]) == ({"tokens": 0}, False)
    assert await reset_due(admission) == 0


@pytest.mark.parametrize(
    ("period", "zone", "later", "following"),
    [
        ("hour", "UTC", "2026-11-03 07:20", "2026-11-03 08:00"),
        ("day", "Europe/Madrid", "2026-10-25 12:00", "2026-10-25 23:00"),
        # a day of 25 hours: the clocks go back at three
        ("day", "Europe/Madrid", "2026-10-24 22:00", "2026-10-25 23:00"),
        # an hour that comes twice ends after each
        ("hour", "Europe/Madrid", "2026-10-25 00:30", "2026-10-25 01:00"),
        ("hour", "Europe/Madrid", "2026-10-25 01:30", "2026-10-25 02:00"),
        # half an hour that is skipped, in a zone with half hours
        ("day", "Australia/Lord_Howe", "2026-10-03 15:00", "2026-10-04 13:00"),
        ("week", "UTC", "2026-09-09 01:00", "2026-09-14 00:00"),
        ("month", "America/New_York", "2027-02-28 00:00", "2027-03-01 05:00"),
    ],
)
async def test_a_reset_after_several_periods_ends_the_present_one(
    admission, clock, period, zone, later, following
):
    """Times are in UTC."""
    await clock.freeze(datetime(2026, 3, 28, 22, 30, tzinfo=UTC))
    await create(admission, period=period, period_zone=zone)
    await report(admission, 100)
    await clock.freeze(datetime.fromisoformat(f"{later}+00:00"))
    assert await reset_due(admission) == 1
    status = await admission.status()
    assert (status["next_reset_at"], status["is_shut"]) == (
        datetime.fromisoformat(f"{following}+00:00"),
        False,
    )
    assert await reset_due(admission) == 0


@pytest.mark.parametrize("by", ["a report", "the reconciler"])
async def test_a_clock_that_was_far_ahead_does_not_delay_the_next_reset(admission, clock, by):
    start = await clock.freeze(datetime(2026, 3, 28, 22, 30, tzinfo=UTC))
    await create(admission, period="day", period_zone="UTC")
    await clock.advance(days=400)
    assert await reset_due(admission) == 1
    await report(admission, 100)
    await clock.freeze(start)
    if by == "a report":
        await report(admission, 1)
    else:
        await reset_due(admission)
    assert (await admission.status())["next_reset_at"] == datetime(2026, 3, 29, tzinfo=UTC)
    await clock.advance(hours=2)
    assert await reset_due(admission) == 1


async def test_a_manual_reset_keeps_the_phase(admission, clock):
    start = await clock.freeze()
    await create(admission, period="interval", period_length=timedelta(hours=1))
    await clock.advance(minutes=50)
    answer = await admission.one("reset_budget", budget="monthly")
    assert answer["next_reset_at"] == start + timedelta(hours=1)


async def test_usage_after_the_end_of_a_period_counts_in_the_next(admission, clock):
    await clock.freeze()
    await create(admission, period="interval", period_length=timedelta(hours=1))
    await report(admission, 90)
    await clock.advance(hours=1)
    assert (await report(admission, 20))["outcome"] == "ok"
    assert await usage(admission) == 20


async def test_budgets_are_listed_page_by_page(admission):
    for key in ("c", "a", "b"):
        await create(admission, key=key)
    first = await admission.call("list_budgets", partition_key=home(), limit=2)
    assert [row["key"] for row in first] == ["a", "b"]
    last = first[-1]
    rest = await admission.call(
        "list_budgets",
        partition_key=home(),
        after_namespace=last["namespace"],
        after_budget=last["budget"],
        after_key=last["key"],
    )
    assert [row["key"] for row in rest] == ["c"]
