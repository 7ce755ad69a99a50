"""A bound login reaches no subscription of another namespace; an application makes no worker call
out, and learns no secret."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode

import pytest

from support.factories import Engine, new_id, refused
from support.streams import append

from .conftest import OURS, THEIRS

LEASE = "select outcome, epoch from ff.lease_subscription($1, $2, $3, 'me', '30s', p_cursor => $4)"
ADD = "select secret from ff.add_webhook($1, $2, $3, 'https://x.example/', 'x.example:443', $4)"


@pytest.fixture
async def cursor(keeper) -> str:
    return await keeper.fetchval("select ff.open_cursor(0::smallint)")


async def test_a_bound_login_reaches_no_foreign_subscription(login, keeper, cursor):
    name = f"s-{new_id()}"
    bound = await login("bound")
    holder = new_id()
    leased = await keeper.fetchrow(LEASE, THEIRS, name, holder, cursor)
    for call, *arguments in (
        (LEASE, THEIRS, name, new_id(), cursor),
        (
            "select ff.ack_subscription($1, $2, $3, $4, '30s')",
            THEIRS,
            name,
            holder,
            leased["epoch"],
        ),
        ("select ff.release_subscription($1, $2, $3, $4)", THEIRS, name, holder, leased["epoch"]),
        ("select ff.reset_subscription($1, $2, $3)", THEIRS, name, cursor),
        ("select ff.remove_subscription($1, $2)", THEIRS, name),
        ("select ff.list_subscriptions($1)", THEIRS),
        ("select ff.read_lags(0::smallint, $1)", THEIRS),
    ):
        with refused("WF501"):
            await bound.fetch(call, *arguments)
    # A name of ours is another subscription.
    assert (await bound.fetchrow(LEASE, OURS, name, new_id(), cursor))["outcome"] == "leased"
    assert await bound.fetchval("select count(*) from ff.list_subscriptions($1)", OURS) >= 1
    assert await keeper.fetchval(
        "select outcome from ff.ack_subscription($1, $2, $3, $4, '30s')",
        THEIRS, name, holder, leased["epoch"],
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
    leased = await login_.fetchrow(
        "select outcome, epoch, url from ff.lease_webhook($1, $2, $3, 'me', '30s')",
        OURS, name, holder := new_id(),
    )  # fmt: skip
    assert (leased["outcome"], leased["url"]) == ("leased", "https://x.example/")
    signature = await login_.fetchval(
        "select signature from ff.sign_webhook($1, $2, $3, $4, array['x'], array[''::bytea])",
        OURS, name, holder, leased["epoch"],
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
        "select epoch from ff.lease_webhook($1, $2, $3, 'me', '30s')", OURS, name, holder
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
    await bound.fetchrow(LEASE, OURS, name, new_id(), cursor)
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


async def test_the_secret_of_a_webhook_is_in_two_columns_and_in_no_answer(login, keeper, cursor):
    """The secret is shown once. Search every table and every list for it and for its blocks."""
    name = f"w-{new_id()}"
    shown = await keeper.fetchval(ADD, OURS, name, new_id(), cursor)
    signed = await keeper.fetchrow(
        "select outcome from ff.sign_webhook($1, $2, null, null, array['id'], array['x'::bytea])",
        OURS,
        name,
    )
    assert signed["outcome"] == "signed"
    blocks = await keeper.fetchrow(
        "select inner_block, outer_block from ff.subscription where name = $1", name
    )
    secret = b64decode(shown.removeprefix("whsec_"))
    needles = [
        shown.removeprefix("whsec_"),
        *(one.hex() for one in (secret, bytes(blocks[0]), bytes(blocks[1]))),
    ]
    tables = await keeper.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind in ('r', 'p', 'v')"
    )
    found = set()
    for table in (row["relname"] for row in tables):
        for row in await keeper.fetch(f"select t::text as text from ff.{table} t"):
            found |= {table for one in needles if one in row["text"]}
    assert found == {"subscription"}
    answers = [
        ("operator", "select * from ff.list_webhooks($1)"),
        ("operator", "select * from ff.list_subscriptions($1)"),
        ("operator", "select * from ff.list_audit($1)"),
        ("application", "select * from ff.list_subscriptions($1)"),
        ("bound", "select * from ff.list_subscriptions($1)"),
    ]
    for user, call in answers:
        text = str(await (await login(user)).fetch(call, OURS))
        assert name in text or "list_webhooks" not in call
        assert not [one for one in needles if one in text], (user, call)
    for user in ("bound", "application", "operator", "stranger"):
        for column in ("inner_block", "outer_block"):
            with refused("42501"):
                await (await login(user)).fetch(f"select {column} from ff.subscription")
