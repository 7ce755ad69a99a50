"""Tasks: their options are stored, their arguments and results keep their types, and a task that is
called is the function it was made of."""

from __future__ import annotations

import asyncio
import pickle
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from flowfabric import (
    Context,
    ExecutionFailed,
    Exponential,
    Fixed,
    FlowFabric,
    GiveUp,
    InvalidInput,
    KeyReused,
    NotFound,
    Retry,
    RetryAfter,
    Task,
)
from flowfabric.core.errors import LaneClosed
from flowfabric.core.states import FailureClass
from worker.apps import working


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Address(BaseModel):
    street: str
    number: int = Field(gt=0)


@dataclass
class Line:
    article: str
    price: Decimal


class Extra(TypedDict):
    gift: bool
    at: datetime


class Basket(BaseModel):
    numbers: frozenset[int]
    counts: dict[str, int]


class Point(NamedTuple):
    x: int
    y: float


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: set[str]


class Order(BaseModel):
    id: UUID
    ship_to: Address | None
    lines: list[Line]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    extras: dict[str, Extra]


NOON = datetime(2026, 3, 29, 12, 0, 0, 123456, tzinfo=UTC)
ORDER = Order(
    id=UUID(int=7),
    ship_to=Address(street="Elm", number=3),
    lines=[Line("cup", Decimal("19.90")), Line("tea", Decimal("0.001"))],
    pet=Dog(tricks={"sit", "roll"}),
    extras={"a": Extra(gift=True, at=NOON)},
)

VALUES: list[tuple[Any, Any]] = [
    (Address, Address(street="Elm", number=3)),
    (Line, Line("cup", Decimal("19.90"))),
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (Extra, Extra(gift=False, at=NOON)),
    (Point, Point(1, 2.5)),
    (datetime, NOON),
    (date, date(2026, 2, 28)),
    (time_of_day, time_of_day(23, 59, 1)),
    (timedelta, timedelta(days=3, microseconds=7)),
    (UUID, UUID(int=2**127)),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (Decimal, Decimal("1234567890.0987654321")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (dict[UUID, Decimal], {UUID(int=1): Decimal("1.5")}),
    (int | str, "7"),
    (int | str, 7),
    (str | None, None),
    (Cat | Dog, Cat(lives=9)),
    (bytes, "ü".encode()),
    (Path, Path("/tmp/x")),
    (float, float("inf")),
    (Literal["a", "b"], "b"),
    (Any, {"a": [1, None, True, 2.5, "x"]}),
]


async def test_values_keep_their_types_in_and_out(app):
    seen = {}

    def echo(number: int, kind: Any) -> Task[..., Any, Any]:
        async def echo(value):
            seen[number] = value
            return value

        echo.__annotations__ = {"value": kind, "return": kind}
        return app.task(name=f"shop.echo{number}")(echo)

    tasks = [echo(number, kind) for number, (kind, _) in enumerate(VALUES)]
    runs = [await task.submit(value) for task, (_, value) in zip(tasks, VALUES, strict=True)]
    async with working(app):
        results = [await run.result(timeout=60) for run in runs]

    for number, (kind, value) in enumerate(VALUES):
        for found in (seen[number], results[number]):
            assert found == value, kind
            assert type(found) is type(value), kind


async def test_a_bad_value_is_named_wherever_it_stands(app):
    @app.task(name="shop.order")
    async def order(order: Order, *others: int, note: str = "", **more: date) -> None: ...

    raw = ORDER.model_dump()
    for bad, field in (
        (lambda: order.submit({**raw, "ship_to": {"street": "Elm", "number": 0}}), "order.ship_to"),
        (lambda: order.submit({**raw, "lines": [{"article": "x", "price": "y"}]}), "order.lines.0"),
        (lambda: order.submit({**raw, "pet": {"kind": "cow"}}), "order.pet"),
        (lambda: order.submit(ORDER, 1, "two"), "others.1"),
        (lambda: order.submit(ORDER, note=object()), "note"),
        (lambda: order.submit(ORDER, on="never"), "more.on"),
        (lambda: order.submit(), "order"),
        (lambda: order.submit(1, order=2), "arguments of shop.order"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await bad()
        assert caught.value.field.startswith(field), caught.value
        assert "shop.order" in str(caught.value)


async def test_all_that_is_wrong_with_a_call_is_told_at_once(app):
    @app.task(name="shop.pay")
    def pay(amount: int, currency: str, card: str) -> None: ...

    for option in ("delay", "priority", "lane", "tags", "with_parent"):
        with pytest.raises(InvalidInput, match=rf"use task\.using\({option}=\.\.\.\)\.submit"):
            await pay.submit(10, "EUR", "4111", **{option: 5})
    with pytest.raises(InvalidInput) as caught:
        await pay.submit("ten", 5, "4111")  # type: ignore[arg-type]
    assert caught.value.field == "amount"
    assert re.fullmatch(
        r"amount: Input should be a valid integer.*; currency: Input should be a valid string "
        r"\(argument of shop.pay\)",
        str(caught.value),
    )


async def test_a_type_that_cannot_travel_is_named(app):
    class Socket: ...

    async def send(socket): ...

    send.__annotations__ = {"socket": Socket}
    task = app.task(name="shop.send")(send)
    with pytest.raises(InvalidInput, match=r"shop\.send.*its parameters cannot be stored as JSON"):
        await task.submit(Socket())


async def test_the_options_are_stored(app):
    @app.task(
        name="shop.all",
        lane="mail",
        priority=3,
        needs={"smtp", "gpu"},
        retry=Retry(max_retries=2, backoff=Fixed(timedelta(seconds=5))),
        timeout=timedelta(minutes=2),
        deadline=timedelta(hours=1),
        max_reclaims=4,
        retention=timedelta(days=7),
        tags={"team.name": "blue"},
        version="2026.1",
    )
    async def everything() -> None: ...

    run = await everything.submit()
    info = await (await app.client()).executions.describe(run.id)

    assert (info.task, info.lane, info.priority) == ("shop.all", "mail", 3)
    assert info.capabilities == {"smtp", "gpu"}
    assert info.policy == {
        "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 5000}},
        "timeout_policy": {"attempt_timeout_ms": 120000},
        "retention_ms": 7 * 86400000,
    }
    assert info.deadline_at - info.created_at == timedelta(hours=1)
    assert (info.max_reclaims, info.retention) == (4, timedelta(days=7))
    assert info.tags == {"team.name": "blue"}
    assert info.task_version == "2026.1"


@pytest.mark.parametrize("version", ["", "x" * 257, 3, "a\x00b"])
def test_a_bad_version_is_refused(app, version):
    with pytest.raises(InvalidInput, match="version"):
        app.task(version=version)(lambda: None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": ""}, "name"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"needs": 5}, "needs"),
        ({"retry": 3}, "retry"),
        ({"max_reclaims": -1}, "max_reclaims"),
        ({"max_reclaims": True}, "max_reclaims"),
        ({"tags": {"shop": "x"}}, "tags"),
        ({"tags": ["x"]}, "tags"),
    ],
)
def test_a_bad_option_of_a_task_is_refused_where_it_is_written(app, options, field):
    with pytest.raises(InvalidInput) as caught:
        app.task(**options)(lambda: None)
    assert caught.value.field == field
    assert not app.tasks


# Options of a submit


async def test_options_stand_beside_the_arguments(app):
    @app.task
    async def work(n: int, *, text: str = "") -> int:
        return n

    first = await work.submit(7, text="a", key="k")
    again = await work.submit(7, text="a", key="k", window=timedelta(hours=1))
    assert again.id == first.id
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    with pytest.raises(KeyReused):
        await work.submit(8, text="a", key="k")
    sync = await asyncio.to_thread(lambda: work.submit_sync(7, text="a", key="k"))
    assert sync.is_duplicate
    by_name = await app.submit(work.name, 7, text="a", key="k")
    assert by_name.is_duplicate


async def test_a_reused_key_names_the_run_that_has_it(app):
    @app.task(name="shop.pay")
    async def pay(amount: int) -> int:
        return amount

    first = await pay.submit(7, key="order-7")
    with pytest.raises(KeyReused) as caught:
        await pay.submit(8, key="order-7")
    assert caught.value.execution_id == first.id
    assert f"'order-7' was used before with other arguments: it belongs to {first.id.uuid}, an" in (
        str(caught.value)
    )
    assert pickle.loads(pickle.dumps(caught.value)).execution_id == first.id
    with pytest.raises(KeyReused):
        await pay.submit(8, key="order-7", on_conflict="raise")


async def test_on_conflict_existing_returns_the_run_whatever_the_arguments(app, db, clock):
    @app.task(name="shop.pay", retention=timedelta(minutes=1))
    async def pay(amount: int) -> int:
        return amount

    @app.task(name="shop.refund")
    async def refund(amount: int) -> str:
        return str(amount)

    first = await pay.submit(7, key="order-7", on_conflict="existing")
    same = await pay.submit(7, key="order-7", on_conflict="existing")
    other = await pay.using(on_conflict="existing").submit(8, key="order-7")
    sync = await asyncio.to_thread(
        lambda: pay.submit_sync(9, key="order-7", on_conflict="existing")
    )
    by_name = await app.submit("shop.pay", 10, key="order-7", on_conflict="existing")
    assert {run.id for run in (same, other, sync, by_name)} == {first.id}
    assert [run.is_duplicate for run in (first, same, other, sync)] == [False, True, True, True]
    # The result of another task would have another type.
    with pytest.raises(KeyReused, match=r"an execution of shop\.pay"):
        await refund.submit(7, key="order-7", on_conflict="existing")
    async with working(app):
        assert await other.result(timeout=60) == 7
    # The key outlives its execution, and so does the answer.
    await clock.advance(hours=1)
    await db.execute("select ff.trim_retention(0::smallint)")
    assert (await pay.submit(8, key="order-7", on_conflict="existing")).id == first.id
    with pytest.raises(KeyReused, match="which was trimmed"):
        await pay.submit(8, key="order-7")


async def test_a_child_takes_on_conflict_too(app):
    @app.task(name="shop.pay")
    async def pay(amount: int) -> int:
        return amount

    @app.task(name="shop.order")
    async def order(ctx: Context, amount: int) -> int:
        run = await ctx.submit(pay.using(key="order-7", on_conflict="existing"), amount)
        return await run.result()

    async with working(app):
        runs = [await order.submit(7)]
        assert await runs[0].result(timeout=60) == 7
        assert await (await order.submit(8)).result(timeout=60) == 7


async def test_a_run_is_found_by_its_key(app):
    @app.task(name="shop.pay")
    async def pay(amount: Decimal) -> Decimal:
        return amount

    first = await pay.submit(Decimal("1.50"), key="order-7")
    found = await app.get_by_key("order-7")
    assert (found.id, found.task) == (first.id, "shop.pay")
    assert (await asyncio.to_thread(lambda: app.get_by_key_sync("order-7"))).id == first.id
    async with working(app):
        assert await found.result(timeout=60) == Decimal("1.50")
    with pytest.raises(NotFound, match=r"No execution has the key 'order-8' in the namespace"):
        await app.get_by_key("order-8")
    for key in ("", 7):
        with pytest.raises(InvalidInput, match="key"):
            await app.get_by_key(key)
    async with FlowFabric(app.settings.database_url, namespace=None) as everything:
        with pytest.raises(InvalidInput, match="namespace"):
            await everything.executions.find_by_key("order-7")


async def test_a_task_gets_its_own_runs(app):
    @app.task(name="shop.pay")
    async def pay(amount: Decimal) -> Decimal:
        return amount

    @app.task(name="shop.count")
    async def count() -> int:
        return 3

    async with working(app):
        id = str((await pay.submit(Decimal(3))).id)
        assert await pay.get(id).result(timeout=60) == Decimal(3)
        assert pay.get(id).task == "shop.pay"
        assert await pay.get(id.rpartition(":")[2]).result(timeout=60) == Decimal(3)
        with pytest.raises(InvalidInput, match=r"is an execution of shop\.pay, not shop\.count"):
            await count.get(id).result(timeout=60)
    with pytest.raises(InvalidInput, match="execution_id"):
        pay.get("seven")


async def test_equal_arguments_are_the_same_under_a_key_in_whatever_order(app):
    @app.task(name="shop.paint")
    async def paint(numbers: set[int], prices: dict[str, int], box: Basket) -> None: ...

    # Equal sets, and yet the one iterates the other way round; of texts, in any other process.
    some, others = {0, 8}, {8, 0}
    assert some == others
    assert list(some) != list(others)
    first = await paint.submit(
        some, {"a": 1, "b": 2}, Basket(numbers=some, counts={"m": 1, "n": 2}), key="k"
    )
    again = await paint.submit(
        others, {"b": 2, "a": 1}, Basket(numbers=others, counts={"n": 2, "m": 1}), key="k"
    )
    assert (again.is_duplicate, again.id) == (True, first.id)
    with pytest.raises(KeyReused):
        await paint.submit(some, {"a": 1}, Basket(numbers={0}, counts={}), key="k")


async def test_the_order_of_a_list_counts_under_a_key(app):
    @app.task(name="shop.line_up")
    async def line_up(names: list[str], pairs: dict[str, list[int]]) -> None: ...

    await line_up.submit(["a", "b"], {"x": [1, 2]}, key="k")
    with pytest.raises(KeyReused):
        await line_up.submit(["b", "a"], {"x": [1, 2]}, key="k")
    with pytest.raises(KeyReused):
        await line_up.submit(["a", "b"], {"x": [2, 1]}, key="k")


async def test_a_key_may_be_unique_until_the_end(app):
    @app.task(name="shop.work")
    async def work(n: int) -> int:
        return n

    first = await work.submit(7, key="k", unique="unfinished")
    assert (await work.submit(7, key="k", unique="unfinished")).id == first.id
    await first.cancel()
    later = await work.submit(7, key="k", unique="unfinished")
    assert later.id != first.id
    assert not later.is_duplicate


async def test_a_parameter_of_the_task_comes_before_our_option(app):
    @app.task(name="shop.store")
    async def store(key: str, via: int = 0) -> str:
        return f"{key} {via}"

    async with working(app):
        assert await (await store.submit(key="a", via=3)).result(timeout=60) == "a 3"
        runs = [await store.using(key="k").submit("a", via=1) for _ in range(2)]
        assert [run.is_duplicate for run in runs] == [False, True]
    with pytest.raises(InvalidInput, match="multiple values for argument 'key'"):
        await store.submit("a", key="k")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": 5}, "key"),
        ({"key": "k", "unique": "always"}, "unique"),
        ({"key": "k", "window": 60}, "window"),
        ({"key": "k", "window": timedelta(-1)}, "window"),
        ({"unique": "unfinished"}, "unique"),
        ({"window": timedelta(1)}, "window"),
        ({"on_conflict": "existing"}, "on_conflict"),
        ({"key": "k", "on_conflict": "replace"}, "on_conflict"),
        ({"with_parent": True}, "with_parent"),
    ],
)
async def test_a_bad_option_is_named_and_nothing_is_stored(app, db, options, field):
    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput) as caught:
        await work.using(**options).submit()
    assert caught.value.field == field
    assert await db.fetchval("select count(*) from ff.execution") == 0


# Many


async def test_thousands_are_submitted_at_once_and_in_order(app, db):
    @app.task
    async def work(n: int, text: str = "x") -> int:
        return n

    runs = await work.submit_many([(n,) if n % 2 else (n, "y") for n in range(3000)])

    assert len({run.id for run in runs}) == 3000
    assert await db.fetchval("select count(*) from ff.execution") == 3000
    payload = await db.fetchval(
        "select convert_from(payload, 'utf8') from ff.execution where execution_id = $1",
        runs[2718].id.uuid,
    )
    assert payload == '{"n":2718,"text":"y"}'


async def test_many_share_the_options_of_their_task(app, db):
    @app.task(lane="mail", tags={"team.name": "a"}, version="v1", retry=Retry(max_retries=3))
    async def work(n: int) -> None: ...

    one = await work.using(priority=5, deadline=timedelta(hours=1)).submit(1)
    many = await work.using(priority=5, deadline=timedelta(hours=1)).submit_many([(1,), (1,)])
    found = [
        await db.fetchrow(
            "select e.rank, e.route_id, e.max_reclaims, e.payload, e.deadline_at is null as late,"
            " b.policy, b.tags, b.task_version from ff.execution e join ff.execution_body b "
            "using (partition_key, execution_id) where execution_id = $1",
            run.id.uuid,
        )
        for run in (one, *many)
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["task_version"] == "v1"


async def test_executions_are_stored_if_the_database_has_forgotten_their_route(app, db):
    @app.task
    async def work(n: int) -> None: ...

    client = await app.client()
    await work.submit(0)
    route = next(iter(client.lanes.known))
    client.lanes.known[route] += 1000
    runs = await work.submit_many([(n,) for n in range(3)])
    client.lanes.known[route] += 1000
    runs += await asyncio.gather(work.submit(3), work.submit(4))
    assert [await run.state() for run in runs] == ["waiting"] * 5
    assert await db.fetchval("select count(*) from ff.execution") == 6


async def test_submits_of_two_tasks_at_once_get_their_own_answers(app, db):
    @app.task
    async def work(n: int) -> None: ...

    @app.task(lane="shut")
    async def late(n: int) -> None: ...

    await late.submit(0)
    await (await app.client()).lanes.drain("shut")
    both = [task.submit(n) for n in range(3) for task in (work, late)]
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(answer, LaneClosed) for answer in answers[1::2])
    assert [await answer.state() for answer in answers[::2]] == ["waiting"] * 3
    assert await db.fetchval("select count(*) from ff.execution") == 4


async def test_many_are_refused_by_a_closed_lane(app, db):
    @app.task
    async def work(n: int) -> None: ...

    await work.submit(0)
    await (await app.client()).lanes.drain("default")
    with pytest.raises(LaneClosed):
        await work.submit_many([(n,) for n in range(3)])
    with pytest.raises(LaneClosed):
        await asyncio.to_thread(work.submit_many_sync, [(1,)])
    assert await db.fetchval("select count(*) from ff.execution") == 1


async def test_a_large_payload_among_many_is_refused_before_anything_is_stored(app, db):
    @app.task
    async def work(text: str) -> None: ...

    with pytest.raises(InvalidInput, match="payload: is 1048590 bytes"):
        await work.submit_many([("x",), ("x" * 1048579,)])
    assert await db.fetchval("select count(*) from ff.execution") == 0
    runs = await work.submit_many([("x",), ("x" * 300,)])
    assert [await run.state() for run in runs] == ["waiting"] * 2


async def test_nothing_is_submitted_if_there_is_nothing(app):
    @app.task
    async def work() -> None: ...

    assert await work.submit_many([]) == []


@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ([(1,), ("two",)], r"calls\[1\]\.n"),
        ([(1,), 2], r"calls\[1\]"),
        ([(1,), (1, 2)], r"calls\[1\]\.arguments of"),
    ],
)
async def test_the_bad_one_of_many_is_named_by_its_place(app, db, calls, field):
    @app.task
    async def work(n: int) -> None: ...

    with pytest.raises(InvalidInput, match=field):
        await work.submit_many(calls)
    assert await db.fetchval("select count(*) from ff.execution") == 0


async def test_one_key_is_not_for_many(app):
    @app.task
    async def work(n: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"key: .* keys=\["):
        await work.using(key="k").submit_many([(1,), (2,)])


async def test_each_of_many_has_its_own_key(app, db):
    @app.task
    async def work(n: int) -> int:
        return n

    first, second, plain = await work.submit_many([(1,), (2,), (3,)], keys=["a", "b", None])
    again = await work.using(on_conflict="existing").submit_many(
        [(1,), (5,), (6,), (7,)], keys=["a", "b", "c", "c"]
    )
    assert [run.id for run in again[:2]] == [first.id, second.id]
    assert [run.is_duplicate for run in again] == [True, True, False, True]
    assert again[2].id == again[3].id
    with pytest.raises(KeyReused) as caught:
        await work.submit_many([(8,), (9,)], keys=["a", "d"])
    assert caught.value.execution_id == first.id
    sync = await asyncio.to_thread(lambda: work.submit_many_sync([(9,)], keys=["d"]))
    assert sync[0].is_duplicate, "the others of a refused one are stored"
    assert not plain.is_duplicate
    assert await db.fetchval("select count(*) from ff.execution") == 5


@pytest.mark.parametrize(
    ("keys", "options", "field"),
    [
        (["a"], {}, "keys: must be a list of one key for each of 2 calls"),
        ("ab", {}, "keys: must be a list of one key for each of 2 calls"),
        (["a", ""], {}, r"keys\[1\]: must be"),
        (["a", 7], {}, r"keys\[1\]: must be text"),
        (None, {"on_conflict": "existing"}, "on_conflict: needs a key"),
        (None, {"unique": "unfinished"}, "unique: needs a key"),
    ],
)
async def test_bad_keys_of_many_are_named(app, db, keys, options, field):
    @app.task
    async def work(n: int) -> None: ...

    with pytest.raises(InvalidInput, match=field):
        await work.using(**options).submit_many([(1,), (2,)], keys=keys)
    assert await db.fetchval("select count(*) from ff.execution") == 0


# Called, not submitted


async def test_calling_a_task_is_calling_its_function(app):
    @app.task
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task
    def shout(text: str) -> str:
        """Says it loudly."""
        return text.upper()

    assert await add(1) == 2
    assert await add(1, b=5) == 6
    assert shout("a") == "A"
    assert (shout.__name__, shout.__doc__) == ("shout", "Says it loudly.")
    with pytest.raises(TypeError):
        add()


async def test_a_task_with_a_context_needs_one_when_called(app):
    @app.task(name="shop.inner")
    async def inner(n: int, ctx: Context, *, m: int = 0) -> tuple[int, int]:
        return n + m, ctx.attempt

    with pytest.raises(TypeError, match=r"shop\.inner takes a Context.*inner\.function"):
        inner(1)

    class Fake(Context):
        def __init__(self) -> None: ...

        @property
        def attempt(self) -> int:
            return 9

    assert await inner.function(1, Fake()) == (1, 9)
    assert await inner(1, Fake(), m=2) == (3, 9)
    assert await inner(1, ctx=Fake()) == (1, 9)


async def test_a_task_called_by_a_handler_gets_its_context(app):
    @app.task
    async def inner(n: int, ctx: Context, *, m: int = 0) -> str:
        return f"{n + m} {ctx.execution_id}"

    @app.task
    async def outer(ctx: Context) -> list[str]:
        return [await inner(1, m=2), str(ctx.execution_id)]

    run = await outer.submit()
    async with working(app):
        told, id = await run.result(timeout=60)
    assert told == f"3 {id}"
    assert id == run.id


# Which failures are tried again


AT_ONCE = Fixed(timedelta(0))
CASES = [
    (Retry(2, AT_ONCE), ValueError("x"), 3),
    (Retry(2, AT_ONCE, retry_on=ConnectionError), ConnectionResetError("x"), 3),
    (Retry(2, AT_ONCE, retry_on=ConnectionError), ValueError("x"), 1),
    (Retry(2, AT_ONCE, never_on=ValueError), ValueError("x"), 1),
    (Retry(2, AT_ONCE, never_on=(LookupError, ValueError)), KeyError("x"), 1),
    (Retry(2, AT_ONCE, never_on=(LookupError,)), ValueError("x"), 3),
    (Retry(2, AT_ONCE, retry_on=OSError, never_on=FileNotFoundError), FileNotFoundError("x"), 1),
    (Retry(2, AT_ONCE, never_on=asyncio.CancelledError), asyncio.CancelledError(), 1),
    (Retry(2, AT_ONCE, when=lambda error, attempt: attempt < 2), ValueError("x"), 2),
    (Retry(2, AT_ONCE), GiveUp("no such card"), 1),
    (Retry(2, retry_on=OSError), RetryAfter(0, "busy"), 3),
    (None, RetryAfter(0), 4),
    (None, RetryAfter(datetime(2020, 1, 1, tzinfo=UTC)), 4),
]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_decides_whether_it_is_tried_again(app, is_async):
    def failing(number: int, retry: Retry, error: BaseException) -> Task[..., Any, Any]:
        async def work() -> None:
            raise error

        def plain() -> None:
            raise error

        return app.task(name=f"shop.work{number}", retry=retry)(work if is_async else plain)

    tasks = [failing(number, retry, error) for number, (retry, error, _) in enumerate(CASES)]
    runs = [await task.submit() for task in tasks]
    async with working(app):
        for run, (retry, _, attempts) in zip(runs, CASES, strict=True):
            with pytest.raises(ExecutionFailed, match=f"in attempt {attempts}:"):
                await run.result(timeout=60)
            info = await (await app.client()).executions.describe(run.id)
            assert info.total_attempt_count == attempts, retry
            kind = FailureClass.TRANSIENT if attempts > 2 else FailureClass.PERMANENT
            assert info.failure_class is kind, retry


def test_a_group_is_worth_it_if_each_of_it_is():
    retry = Retry(retry_on=ConnectionError, never_on=BrokenPipeError)
    reset, broken, value = ConnectionResetError(), BrokenPipeError(), ValueError()
    assert retry.allows(ExceptionGroup("", [reset, ExceptionGroup("", [reset])]))
    assert not retry.allows(ExceptionGroup("", [reset, value]))
    assert not retry.allows(ExceptionGroup("", [reset, ExceptionGroup("", [broken])]))
    assert not Retry(never_on=ValueError).allows(ExceptionGroup("", [reset, value]))
    assert Retry(retry_on=ExceptionGroup).allows(ExceptionGroup("", [value]))
    assert not Retry(never_on=ExceptionGroup).allows(ExceptionGroup("", [reset]))
    assert Retry().allows(BaseExceptionGroup("", [KeyboardInterrupt()]))


@pytest.mark.parametrize(
    "bad", ["ValueError", ValueError("x"), int, [ValueError], (ValueError, 3), None]
)
@pytest.mark.parametrize("field", ["retry_on", "never_on"])
def test_what_is_no_exception_class_is_refused(field, bad):
    with pytest.raises(
        InvalidInput, match=rf"retry\.{field}: must be an exception class"
    ) as caught:
        Retry(**{field: bad})
    assert caught.value.field == f"retry.{field}"


def test_a_backoff_is_one_of_two():
    with pytest.raises(InvalidInput, match=r"retry\.backoff"):
        Retry(backoff=timedelta(seconds=1))
    assert Retry(backoff=Exponential()).allows(ValueError())


def test_a_delay_and_a_moment_are_not_given_together(app):
    @app.task
    async def work() -> None: ...

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidInput) as refused:
        work.using(delay=timedelta(hours=1), delayed_until=moment)
    assert refused.value.field == "delayed_until"


async def test_a_priority_beyond_its_range_is_stored_as_its_end(app, db):
    @app.task
    async def work() -> None: ...

    for priority in (-5, 9001):
        await work.using(priority=priority).submit()
    rows = await db.fetch("select 9000 - rank as priority from ff.execution order by 1")
    assert [row["priority"] for row in rows] == [0, 9000]


@pytest.mark.parametrize("key", [None, "a"])
def test_a_number_that_no_worker_could_read_is_refused(app, key):
    @app.task
    async def work(name: str, number: int) -> None: ...

    with pytest.raises(InvalidInput) as refused:
        work.using(key=key).submission(("Ada", 10**5000), {})
    assert refused.value.field == "number"
    assert len(refused.value.problem) < 300
    assert work.submission(("Ada" * 5000, 10**4000), {}).payload
