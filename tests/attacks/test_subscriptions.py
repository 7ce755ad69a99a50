"""A bound login reaches no subscription of another namespace; an application makes no worker call
out, and learns no secret."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest

from support.factories import Engine, new_id, refused
from support.streams import append

from .conftest import OURS, THEIRS

HOLD = "select outcome, epoch from ff.hold_subscription($1, $2, $3, 'me', '30s', p_cursor => $4)"
ADD = "select secret from ff.add_webhook($1, $2, $3, 'https://x.example/', 'x.example:443', $4)"


@pytest.fixture
async def cursor(keeper) -> str:
    return await keeper.fetchval("select ff.open_cursor(0::smallint)")


async def test_a_bound_login_reaches_no_foreign_subscription(login, keeper, cursor):
    name = f"s-{new_id()}"
    bound = await login("bound")
    holder = new_id()
    held = await keeper.fetchrow(HOLD, THEIRS, name, holder, cursor)
    for call, *arguments in (
        (HOLD, THEIRS, name, new_id(), cursor),
        ("select ff.ack_subscription($1, $2, $3, $4, '30s')", THEIRS, name, holder, held["epoch"]),
        ("select ff.release_subscription($1, $2, $3, $4)", THEIRS, name, holder, held["epoch"]),
        ("select ff.reset_subscription($1, $2, $3)", THEIRS, name, cursor),
        ("select ff.remove_subscription($1, $2)", THEIRS, name),
        ("select ff.list_subscriptions($1)", THEIRS),
        ("select ff.read_lags(0::smallint, $1)", THEIRS),
    ):
        with refused("WF501"):
            await bound.fetch(call, *arguments)
    # A name of ours is another subscription.
    assert (await bound.fetchrow(HOLD, OURS, name, new_id(), cursor))["outcome"] == "held"
    assert await bound.fetchval("select count(*) from ff.list_subscriptions($1)", OURS) >= 1
    assert await keeper.fetchval(
        "select outcome from ff.ack_subscription($1, $2, $3, $4, '30s')",
        THEIRS, name, holder, held["epoch"],
    ) == "acked"  # fmt: skip


@pytest.mark.parametrize("user", ["bound", "application"])
async def test_only_an_operator_manages_webhooks(login, keeper, cursor, user):
    name = f"w-{new_id()}"
    await keeper.fetchval(ADD, OURS, name, new_id(), cursor)
    login_ = await login(user)
    for call, *arguments in (
        (ADD, OURS, f"{name}-2", new_id(), cursor),
        ("select ff.list_webhooks($1)", OURS),
        ("select ff.enable_webhook($1, $2)", OURS, name),
    ):
        with refused("42501"):
            await login_.fetch(call, *arguments)
    for call, *arguments in (
        ("select ff.remove_subscription($1, $2)", OURS, name),
        ("select ff.reset_subscription($1, $2, $3)", OURS, name, cursor),
        (
            "select ff.sign_webhook($1, $2, null, null, array['x'], array[''::bytea])",
            OURS,
            name,
        ),
    ):
        with refused("WF501"):
            await login_.fetch(call, *arguments)
    # It may serve the webhook, and then sign: the secret stays in the database.
    held = await login_.fetchrow(
        "select outcome, epoch, url from ff.hold_webhook($1, $2, $3, 'me', '30s')",
        OURS, name, holder := new_id(),
    )  # fmt: skip
    assert (held["outcome"], held["url"]) == ("held", "https://x.example/")
    signature = await login_.fetchval(
        "select signature from ff.sign_webhook($1, $2, $3, $4, array['x'], array[''::bytea])",
        OURS, name, holder, held["epoch"],
    )  # fmt: skip
    assert signature.startswith("v1,")


FAIL = (
    "select outcome, failure_count from "
    "ff.fail_webhook(0::smallint, $1, $2, $3, $4, $5, 'HTTP 500')"
)


async def test_one_hold_cannot_count_the_failures_of_hours(login, keeper, cursor):
    """A failure counts once until the next try, so nobody disables a webhook faster than its
    receiver would."""
    name, holder = f"w-{new_id()}", new_id()
    await keeper.fetchval(ADD, OURS, name, new_id(), cursor)
    bound = await login("bound")
    epoch = await bound.fetchval(
        "select epoch from ff.hold_webhook($1, $2, $3, 'me', '30s')", OURS, name, holder
    )
    answers = [await bound.fetchrow(FAIL, OURS, name, holder, epoch, no) for no in range(1, 30)]
    assert {tuple(one) for one in answers} == {("failed", 1)}
    row = await keeper.fetchrow(
        "select failure_count, disabled_at from ff.subscription where name = $1", name
    )
    assert tuple(row) == (1, None)


async def test_a_lag_tells_nothing_about_other_namespaces(login, keeper, theirs):
    name = f"s-{new_id()}"
    bound = await login("bound")
    cursor = await keeper.fetchval("select ff.open_cursor(0::smallint)")
    await bound.fetchrow(HOLD, OURS, name, new_id(), cursor)
    lag = "select behind_at, waiting from ff.read_lags(0::smallint, $1, $2)"
    await theirs.submit(route=await theirs.register(lane="theirs"))
    assert tuple(await bound.fetchrow(lag, OURS, name)) == (None, 0)
    ours = Engine(bound, namespace=OURS)
    mine = await ours.submit(route=await ours.register(lane="ours"))
    since, waiting = await bound.fetchrow(lag, OURS, name)
    assert waiting == 1
    assert since == await keeper.fetchval(
        "select occurred_at from ff.event where execution_id = $1", mine.id
    )


async def test_a_hint_of_a_stream_tells_no_id(login, theirs):
    """Every login may listen, so a hint holds a digest that only a reader of the stream knows."""
    bound, heard = await login("bound"), asyncio.Queue[str]()
    await bound.add_listener("ff_stream", lambda *told: heard.put_nowait(told[-1]))
    execution = await theirs.submit(route=await theirs.register(lane="streams"))
    lease = await theirs.take(execution.id, lanes=["streams"])
    await append(theirs, lease, b"secret")
    await theirs.complete(lease)
    async with asyncio.timeout(60):
        payload = await heard.get()
    assert payload.startswith("0 ")
    for form in (b64encode(execution.id.bytes).decode(), execution.id.hex, str(execution.id)):
        assert form.rstrip("=") not in payload
