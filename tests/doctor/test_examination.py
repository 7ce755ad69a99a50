"""A whole examination: clean while the engine works, narrowed to what happened since a cursor or a
time, and each check one moment of the database."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.db.connection import open_connection
from flowfabric.doctor import Level, examine, installation_checks, invariants
from flowfabric.doctor import examination as module
from support.database import home
from support.factories import STATES, Engine, Item
from support.sabotage import drop_checks


@pytest.fixture
async def examined(bare):
    """`await examined(since=...)`: the report on the test's database."""

    async def run(**options):
        async with open_connection(bare, statement_cache_size=0) as connection:
            return await examine(connection, is_throwaway=True, **options)

    return run


def names(report, level=Level.ERROR):
    return {finding.name for finding in report.findings if finding.level is level}


async def test_a_full_pass_runs_every_check_in_order(examined):
    seen = []
    report = await examined(report=seen.append)
    expected = [check.name for check in (*installation_checks(), *invariants())]
    assert [verdict.name for verdict in report.verdicts] == expected
    assert [step.name for step in seen] == expected
    assert [step.done for step in seen] == list(range(len(expected)))
    assert {step.total for step in seen} == {len(expected)}
    assert report.is_sound
    assert (report.executions, report.events) == (None, None)
    assert report.cursor


async def test_every_state_is_clean_in_a_full_pass_and_narrowed(db, make):
    for state in STATES:
        await make.execution(state)
    async with open_connection(db.url, statement_cache_size=0) as connection:
        long_ago = datetime(2000, 1, 1, tzinfo=UTC)
        for since in (None, long_ago):
            report = await examine(connection, since=since, is_throwaway=True)
            errors = [f for f in report.findings if f.level is Level.ERROR]
            # The test template has a witness and a clock of its own.
            assert {finding.name for finding in errors} == {"X02", "X04"}
    # one of them waits for another
    assert report.executions == len(STATES) + 1


async def test_since_a_cursor_only_what_happened_is_looked_at(examined, working, plain):
    route = await working.register()
    await working.submit(route=route)
    await drop_checks(plain)
    await plain.execute("update ff.execution set rank = 9001")
    report = await examined()
    assert "S10" in names(report)
    again = await examined(since=report.cursor)
    assert (again.executions, again.events, names(again) & {"S10"}) == (0, 0, set())
    second = await working.submit(route=route)
    await plain.execute("update ff.execution set version = 7 where execution_id = $1", second.id)
    again = await examined(since=report.cursor)
    assert (again.executions, again.events) == (1, 1)
    (finding,) = [f for f in again.findings if f.name == "O04"]
    assert finding.execution == f"{{fp:{home()}}}:{second.id}"
    assert (await examined(since=again.cursor)).executions == 0


async def test_since_a_time(examined, working):
    await working.submit(route=await working.register())
    now = datetime.now(UTC)
    assert (await examined(since=now - timedelta(minutes=1))).executions == 1
    assert (await examined(since=now + timedelta(minutes=1))).executions == 0


async def test_what_commits_late_is_not_missed(bare, examined, working):
    """A transaction that was open when the cursor was made is seen by the next pass."""
    route = await working.register()
    async with open_connection(bare) as other:
        late = Engine(other)
        transaction = other.transaction()
        await transaction.start()
        await late.submit(route=route)
        await working.submit(route=route)
        report = await examined()
        await working.submit(route=route)
        again = await examined(since=report.cursor)
        assert again.executions == 1
        await transaction.commit()
    assert (await examined(since=again.cursor)).executions == 1


async def test_a_check_that_needs_everything_waits_for_a_full_pass(examined):
    report = await examined(since=datetime.now(UTC))
    assert {check.name for check in (*installation_checks(), *invariants())} - {
        verdict.name for verdict in report.verdicts
    } == {"C03", "C05", "D01", "Q01", "Q02", "Q04", "Q13", "U12"}


async def test_a_cursor_of_a_lost_history_leads_to_a_full_pass(examined, working, plain):
    await working.submit(route=await working.register())
    report = await examined()
    await plain.execute("delete from ff.event")
    again = await examined(since=report.cursor)
    assert again.executions is None
    assert "history_lost" in again.notes[0]
    assert "O04" in names(again)


async def test_a_cursor_from_before_a_trim_goes_on_from_its_time(examined, working, plain):
    route = await working.register()
    await working.submit(route=route)
    report = await examined()
    lease = await working.claim_one()
    await working.complete(lease)
    await plain.execute(
        f"select ff.trim_retention(p_partition_key => '{home()}', p_retention => interval '0', "
        "p_event_floor => interval '0')"
    )
    while await plain.fetchval("select count(*) from ff.execution"):
        await plain.execute(
            f"select ff.trim_retention(p_partition_key => '{home()}', "
            "p_retention => interval '0', p_event_floor => interval '0')"
        )
    await working.submit(route=route)
    again = await examined(since=report.cursor)
    assert again.executions == 1
    assert "continuing from" in again.notes[0]
    assert again.is_sound


@pytest.mark.parametrize("cursor", ["ff2:nonsense", "ff2:0:a/ff2:1:b", "ff1:0:a", "", "x"])
async def test_a_text_that_is_no_cursor_is_refused_by_name(examined, cursor):
    with pytest.raises(InvalidInput) as caught:
        await examined(since=cursor)
    assert caught.value.field == "since"


async def test_a_check_that_finds_a_lot_is_cut(examined, working, plain, monkeypatch):
    monkeypatch.setattr(module, "MOST_FINDINGS", 5)
    route = await working.register()
    await working.submit_many([Item(route=route)] * 8)
    await drop_checks(plain)
    await plain.execute("update ff.execution set progress_percent = 101")
    for since in (None, datetime(2000, 1, 1, tzinfo=UTC)):
        report = await examined(since=since)
        (verdict,) = [verdict for verdict in report.verdicts if verdict.name == "S10"]
        assert (len(verdict.findings), verdict.is_cut) == (5, True)


async def test_many_executions_are_looked_at_in_parts(examined, working, plain, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    route = await working.register()
    await working.submit_many([Item(route=route)] * 10)
    await plain.execute("update ff.execution set version = 2")
    report = await examined(since=datetime(2000, 1, 1, tzinfo=UTC))
    assert report.executions == 10
    assert len([f for f in report.findings if f.name == "O04"]) == 10


async def test_one_check_that_cannot_be_answered_does_not_hide_the_others(examined, working, plain):
    await working.submit(route=await working.register())
    await plain.execute("update ff.execution set version = 2")
    await plain.execute("alter table ff.execution_body rename column tags to labels")
    report = await examined(since=datetime(2000, 1, 1, tzinfo=UTC))
    assert {"S10", "O04"} <= names(report)
    assert "cannot be checked" in next(f.problem for f in report.findings if f.name == "S10")


@pytest.mark.parametrize(
    "change",
    [
        "update ff.meta set value = 'many' where name = 'partitions'",
        "delete from ff.meta where name = 'partitions'",
    ],
)
async def test_a_number_of_partitions_that_cannot_be_read_is_no_crash(examined, plain, change):
    await plain.execute(change)
    report = await examined()
    assert len(report.verdicts) == len(installation_checks()) + len(invariants())


@pytest.mark.slow
async def test_it_finds_nothing_in_the_midst_of_work(bare, examined, sized):
    """Writers that submit, claim, renew, complete, fail, release, expire, replay and trim all the
    time, some of them in transactions that stay open for a while or are rolled back."""
    done = asyncio.Event()
    passes = sized(6, short=1)

    async def work(seed):
        dice = random.Random(seed)
        async with open_connection(bare) as connection:
            engine = Engine(connection)
            route = await engine.register(lane=f"lane {seed % 2}")
            while not done.is_set():
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await engine.submit_many([
                        Item(
                            route=route,
                            policy={"retry_policy": {"max_retries": 3}, "retention_ms": 1},
                            **(
                                {"key": f"{seed} {dice.random()}", "fingerprint": b"f"}
                                if dice.random() < 0.3
                                else {}
                            ),
                        )
                        for _ in range(10)
                    ])  # fmt: skip
                    leases = await engine.claim(
                        10,
                        instance=f"w-{seed}",
                        ttl=timedelta(seconds=dice.choice([1, 60])),
                    )
                    await engine.renew_many(leases) if leases else None
                    if leases[:4]:
                        await engine.complete_many(leases[:4], [b"1"] * len(leases[:4]))
                    if failing := leases[4:6]:
                        words = ["transient"] * len(failing)
                        await engine.fail_many(failing, words, words)
                    if leases[6:8]:
                        await engine.release_many(leases[6:8])
                    await engine.expire()
                    await engine.promote()
                    if dice.random() < 0.3:
                        await asyncio.sleep(0.02)
                    if dice.random() < 0.3:
                        await connection.execute(
                            f"select ff.trim_retention(p_partition_key => '{home()}'), "
                            f"ff.trim_events(p_partition_key => '{home()}')"
                        )
                finally:
                    if dice.random() < 0.2:
                        await transaction.rollback()
                    else:
                        await transaction.commit()

    workers = [asyncio.create_task(work(seed)) for seed in range(4)]
    try:
        cursor, seen = (await examined()).cursor, 0
        for _ in range(passes):
            for since in (None, cursor):
                report = await examined(since=since)
                assert [f for f in report.findings if f.level is Level.ERROR] == []
            seen += report.executions
            cursor = report.cursor
    finally:
        done.set()
        results = await asyncio.gather(*workers, return_exceptions=True)
    assert [result for result in results if result is not None] == []
    assert seen > 10 * passes
