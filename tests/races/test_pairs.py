"""Every ordered pair of operations on one execution, from every state: one of the serial orders."""

from __future__ import annotations

from itertools import product

import pytest

from support.proofs import some_of

from .pairs import BUILDS, OPERATIONS, Ring, all_of, few_of, in_line_of, sample_of, waiting


@pytest.mark.parametrize("first", some_of(OPERATIONS, turn=0, share=2))
async def test_two_at_once_do_what_one_after_the_other_would(db, clock, first, record_property):
    ring = await Ring.open(db, clock)
    await ring.run(few_of(sample_of(first), first))
    record_property("counts", ring.counts)


@pytest.mark.slow(short=4)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", OPERATIONS)
async def test_two_at_once_in_every_pair(db, clock, first, record_property):
    ring = await Ring.open(db, clock)
    await ring.run(sample_of(first))
    record_property("counts", ring.counts)


@pytest.mark.slow(short=0)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", OPERATIONS)
async def test_two_at_once_from_every_state(db, clock, first, record_property):
    ring = await Ring.open(db, clock)
    await ring.run(all_of(first))
    record_property("counts", ring.counts)


@pytest.mark.parametrize("first", some_of(waiting(), turn=1, share=2))
async def test_two_that_stand_in_line_come_one_after_the_other(db, clock, first, record_property):
    ring = await Ring.open(db, clock)
    await ring.run_in_line(few_of(in_line_of(first, all_homes=False), first))
    record_property("counts", ring.counts)


@pytest.mark.slow(short=1)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", waiting())
async def test_two_that_stand_in_line_in_all_their_states(db, clock, first, record_property):
    ring = await Ring.open(db, clock)
    await ring.run_in_line(in_line_of(first, all_homes=True))
    record_property("counts", ring.counts)


@pytest.mark.parametrize("name", some_of(waiting(), turn=0, share=2))
async def test_a_call_that_waits_reads_the_clock_after_the_wait(db, clock, name):
    ring = await Ring.open(db, clock)
    homes = OPERATIONS[name].home
    await ring.run_late(name, [homes[waiting().index(name) % len(homes)]])


@pytest.mark.slow(short=3)
@pytest.mark.parametrize("name", waiting())
async def test_a_call_that_waits_reads_the_clock_after_the_wait_from_every_state(db, clock, name):
    ring = await Ring.open(db, clock)
    await ring.run_late(name, OPERATIONS[name].home)


def test_the_sample_has_every_pair_and_every_state_with_every_operation_on_both_sides():
    cases = [case for first in OPERATIONS for case in sample_of(first)]
    assert {(case.first, case.second) for case in cases} == {*product(OPERATIONS, repeat=2)}
    table = {*product(BUILDS, OPERATIONS)}
    assert {(case.state, case.first) for case in cases} == table
    assert {(case.state, case.second) for case in cases} == table
    assert len(cases) < 3 * len(OPERATIONS) ** 2


def test_the_few_have_every_state_and_every_operation_on_both_sides():
    cases = [case for first in OPERATIONS for case in few_of(sample_of(first), first)]
    assert {case.first for case in cases} == {case.second for case in cases} == {*OPERATIONS}
    assert {case.state for case in cases} == {*BUILDS}
