"""The harness with flows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import App, Context, ExecutionFailed, any_of

from . import shop

app = App(name="flows")


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def summing(ctx: Context, n: int) -> int:
    async with ctx.flow(app.flow("sums")) as f:
        for one in range(n):
            f.add(add, one)
    return sum((await f.run.results()).values())


@app.task
async def slowly(ctx: Context, n: int) -> int:
    return await ctx.step("look", lambda: n)


@app.task
async def fail() -> int:
    raise LookupError("no such thing")


@pytest.fixture
def ff(ff):
    """The harness may do nothing that the engine would not: its promises hold after every test."""
    yield ff
    ff.check()


async def test_a_flow_runs_to_its_end(ff):
    async with app.flow("sums") as f:
        f.add(add, f.add(add, 1, name="one").result, 2, name="two")
    assert await ff.run(f.run) == 3
    assert await ff.run(f) == 3
    assert await f.run.results() == {"one": 1, "two": 3}


async def test_a_flow_is_stored_first(ff):
    f = app.flow("sums")
    f.add(add, 1)
    assert await ff.run(f) == 1


@pytest.mark.slow(short=4, of="the harness")
async def test_of_several_last_nodes_all_results_are_returned(ff):
    async with app.flow("sums") as f:
        f.add(add, 1, name="a")
        f.add(add, 2, name="b")
    assert await ff.run(f) == {"a": 1, "b": 2}


async def test_a_failure_is_raised_with_its_trace(ff):
    async with app.flow("bad") as f:
        f.add(add, f.add(fail).result)
    with pytest.raises(ExecutionFailed, match="no such thing") as caught:
        await ff.run(f)
    assert any("in fail" in note for note in caught.value.__notes__)


@pytest.mark.slow(short=4, of="the harness")
async def test_drain_works_nodes_off_one_after_the_other(ff):
    async with app.flow("sums") as f:
        a, b = f.add(add, 1), f.add(add, 2)
        f.add(add, 3, after=any_of(a, b, cancel_rest=True))
    assert await ff.drain() == 2
    assert sorted(str(one.state) for one in ff.submitted()) == [
        "cancelled",
        "completed",
        "completed",
    ]


async def test_a_worker_that_dies_behind_a_flow_it_stored_stores_it_once(ff):
    run = await ff.submit(summing, 3)
    await ff.run_until(run, step="ff.flow sums")
    assert await ff.crash_worker() == [run.id]
    assert await ff.run(run) == 3
    ff.assert_submitted(add, times=3)


async def test_a_worker_that_dies_with_a_node_leaves_it_what_it_was_given(ff):
    async with app.flow("sums") as f:
        last = f.add(slowly, f.add(add, 7).result)
    await ff.run_until(f.run.node(last), step="look")
    await ff.crash_worker()
    assert await ff.run(f) == 7
    assert [one.name for one in await ff.steps(f.run.node(last))] == ["look"]


@pytest.mark.slow(short=4, of="the harness")
async def test_time_passes_for_nodes_that_are_tried_again(ff):
    async with shop.app.flow("flaky") as f:
        f.add(shop.greet, "ada", after=f.add(shop.flaky))
    before = await ff.now()
    assert await ff.run(f) == "ada"
    assert await ff.now() - before >= timedelta(hours=2)


@pytest.mark.slow(short=4, of="the harness")
async def test_what_was_submitted_with_results_of_others(ff):
    async with app.flow("sums") as f:
        one = f.add(add.using(priority=3), 1, name="one")
        f.add(add, one.result, 2)
    ff.assert_submitted(add, 1)
    ff.assert_submitted(add.using(priority=3))
    (found,) = ff.assert_submitted(add, b=2)
    assert found.arguments == {"a": "<result of one>", "b": 2}
    assert str(found).endswith("add(a='<result of one>', b=2)")
    ff.assert_submitted(add, b=3, times=0)
