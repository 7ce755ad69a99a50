"""How arguments and results travel as JSON by the type hints of a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from fractions import Fraction
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    Secret,
    SecretBytes,
    SecretStr,
    computed_field,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.handlers.context import Context
from flowfabric.tasks.codec import Codec
from flowfabric.tasks.comparison import Comparison
from flowfabric.tasks.encoding_error import EncodingError
from flowfabric.tasks.spec import TaskSpec

CONTEXT: Any = object()


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float = 0.5


class Order(BaseModel):
    number: int
    lines: list[Point] = []
    placed: datetime | None = None


def spec_of(function: Callable[..., Any]) -> TaskSpec:
    return TaskSpec(function=function, name="shop.task")


def carried(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the function returns when its arguments went through a payload."""
    spec = spec_of(function)
    found, named = spec.decode(spec.encode(args, kwargs), CONTEXT)
    return function(*found, **named)


def returned(function: Callable[..., Any], value: Any) -> Any:
    """A result after it was stored and read."""
    spec = spec_of(function)
    return spec.decode_result(spec.encode_result(value))


def positional(a: int, b: str) -> Any:
    return a, b


def defaults(a: int, b: str = "b", c: int = 3) -> Any:
    return a, b, c


def variadic(a: int, *rest: int, flag: bool = False, **named: float) -> Any:
    return a, rest, flag, named


def keyword_only(*, a: int, b: int = 2) -> Any:
    return a, b


def positional_only(a: int, b: int = 2, /, c: int = 3) -> Any:
    return a, b, c


def context_first(ctx: Context, a: int) -> Any:
    return ctx is CONTEXT, a


def context_last(a: int, ctx: Context) -> Any:
    return a, ctx is CONTEXT


def context_between(a: int, ctx: Context, *rest: int) -> Any:
    return a, ctx is CONTEXT, rest


def context_by_keyword(a: int, *, ctx: Context, b: int = 2) -> Any:
    return a, ctx is CONTEXT, b


def context_behind_defaults(a: int = 1, b: int = 2, ctx: Context = None) -> Any:  # type: ignore[assignment]
    return a, b, ctx is CONTEXT


def context_maybe(a: int, ctx: Context | None = None) -> Any:
    return a, ctx is CONTEXT


def context_positional_only(a: int = 1, ctx: Context = None, /) -> Any:  # type: ignore[assignment]
    return a, ctx is CONTEXT


def untyped(a, b=2):
    return a, b


def nothing() -> Any:
    return "called"


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = [
    (positional, (1, "x"), {}, (1, "x")),
    (positional, (), {"b": "x", "a": 1}, (1, "x")),
    (defaults, (1,), {}, (1, "b", 3)),
    (defaults, (1,), {"c": 5}, (1, "b", 5)),
    (variadic, (1,), {}, (1, (), False, {})),
    (variadic, (1, 2, 3), {"flag": True, "w": 1.5}, (1, (2, 3), True, {"w": 1.5})),
    (keyword_only, (), {"a": 1}, (1, 2)),
    (positional_only, (1,), {"c": 9}, (1, 2, 9)),
    (positional_only, (1, 5), {}, (1, 5, 3)),
    (context_first, (1,), {}, (True, 1)),
    (context_last, (1,), {}, (1, True)),
    (context_last, (), {"a": 1}, (1, True)),
    (context_between, (1, 2, 3), {}, (1, True, (2, 3))),
    (context_by_keyword, (1,), {"b": 4}, (1, True, 4)),
    (context_behind_defaults, (), {}, (1, 2, True)),
    (context_behind_defaults, (), {"b": 7}, (1, 7, True)),
    (context_maybe, (1,), {}, (1, True)),
    (context_positional_only, (), {}, (1, True)),
    (untyped, ({"k": [1, None, "x"]},), {}, ({"k": [1, None, "x"]}, 2)),
    (nothing, (), {}, "called"),
]


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    CALLS,
    ids=[f"{call[0].__name__}-{n}" for n, call in enumerate(CALLS)],
)
def test_a_call_arrives_as_it_was_made(function, args, kwargs, expected):
    assert carried(function, *args, **kwargs) == expected


def takes_model(value: Order) -> Any:
    return value


def takes_dataclass(value: Point) -> Any:
    return value


def takes_datetime(value: datetime) -> Any:
    return value


def takes_date(value: date) -> Any:
    return value


def takes_timedelta(value: timedelta) -> Any:
    return value


def takes_uuid(value: UUID) -> Any:
    return value


def takes_enum(value: Colour) -> Any:
    return value


def takes_decimal(value: Decimal) -> Any:
    return value


def takes_nested(value: dict[str, list[Point | None]]) -> Any:
    return value


def takes_set(value: set[int]) -> Any:
    return value


def takes_tuple(value: tuple[int, str]) -> Any:
    return value


def takes_float(value: float) -> Any:
    return value


def takes_bytes(value: bytes) -> Any:
    return value


TYPED: list[tuple[Callable[..., Any], Any]] = [
    (takes_model, Order(number=1, lines=[Point(1)], placed=datetime(2026, 1, 1, tzinfo=UTC))),
    (takes_dataclass, Point(1, 2.5)),
    (takes_datetime, datetime(2026, 11, 15, 12, 30, 1, 234567, tzinfo=UTC)),
    (takes_date, date(2026, 11, 15)),
    (takes_timedelta, timedelta(days=3, milliseconds=5)),
    (takes_uuid, UUID("0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e")),
    (takes_enum, Colour.RED),
    (takes_decimal, Decimal("12345678901234567890.1234567890")),
    (takes_nested, {"a": [Point(1), None]}),
    (takes_set, {1, 2}),
    (takes_tuple, (1, "x")),
    (takes_float, 1e300),
    (takes_float, float("inf")),
    (takes_bytes, b"plain"),
]
IDS = [f"{function.__name__[6:]}-{n}" for n, (function, _) in enumerate(TYPED)]


@pytest.mark.parametrize(("function", "value"), TYPED, ids=IDS)
def test_an_argument_arrives_as_its_type(function, value):
    arrived = carried(function, value)

    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(("function", "value"), TYPED, ids=IDS)
def test_a_result_arrives_as_its_type(function, value):
    def result():
        raise AssertionError

    result.__annotations__["return"] = spec_of(function)._hints["value"]

    arrived = returned(result, value)

    assert arrived == value
    assert type(arrived) is type(value)


def test_nan_is_not_a_number_on_the_other_side_either():
    arrived = carried(takes_float, float("nan"))

    assert arrived != arrived


class Shape(BaseModel):
    name: str


class Circle(Shape):
    radius: float = 1.0


@dataclass
class Flat(Point):
    z: int = 0


class Ratio(BaseModel):
    value: float
    parts: list[Ratio] = []


class Hidden(BaseModel):
    """Its fields are named as the parts of a schema are."""

    type: SecretStr
    metadata: Secret[int]
    cls: SecretBytes = SecretBytes(b"key")


class Aliased(BaseModel):
    number: int = Field(alias="no")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    x: int

    @computed_field(return_type=int)
    @property
    def twice(self) -> int:
        return 2 * self.x


class Private(BaseModel):
    x: int = 1
    _hits: int = PrivateAttr(0)


class Priced(BaseModel):
    price: Decimal = 0  # type: ignore[assignment]


class Text(str):
    __slots__ = ()


class Word(StrEnum):
    A = "a"


class Nothing:
    """Cannot tell whether it equals another, and has a form for JSON."""

    def __init__(self, x: int) -> None:
        self.x = x

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda one: one.x),
        )


class Forgetful(Nothing):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value + 1),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda one: one.x),
        )


class Keys(TypedDict):
    a: int


def hit() -> Private:
    private = Private()
    private._hits = 7
    return private


ID = "{fp:0}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"
NAN = float("nan")
SUMMER = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
LONG_AGO = datetime(1880, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))

# A hint, a value of it, and where the value would not come back as it is; None if it does.
ROUND: dict[str, tuple[Any, Any, str | None]] = {
    "scalars": (list[int | str | None], [1, "a", None], None),
    "a whole number for a float": (float, 2, None),
    "a whole number that no float equals": (list[float], [0.5, 2**53 + 1], "1"),
    "a Decimal that no float equals": (float | None, Decimal("0.1"), ""),
    "a Fraction for a float": (dict[str, float], {"a": Fraction(1, 3)}, "a"),
    "a number in a model that no float equals": (
        Ratio,
        Ratio.model_construct(value=Decimal("0.1"), parts=[]),
        "value",
    ),
    "text for a text": (str, Text("a"), None),
    "enum that is named beside text": (list[Word | str], [Word.A], "0"),
    "text beside an enum that is named": (Word | str, "b", None),
    "None among keys": (dict[str, dict[str, int]], {"a": {None: 1}}, "a"),
    "key of a TypedDict that is missing": (list[Keys], [{}], "0.a"),
    "field of a model that is missing": (Shape, Shape.model_construct(), "name"),
    "zero for a Decimal": (Priced, Priced(), None),
    "tuple": (tuple[int, str], (1, "a"), None),
    "tuples": (dict[str, tuple[int, ...]], {"a": (1, 2)}, None),
    "tuple under Any": (Any, {"a": [1, (2,)]}, "a.1"),
    "tuple under Any in a tuple": (tuple[int, Any], (1, (2,)), "1"),
    "tuple in a plain list": (list, [1, (2,)], "1"),
    "tuple for a Sequence": (Sequence[int], (1, 2), ""),
    "list for a Sequence": (Sequence[int], [1, 2], None),
    "int keys": (dict[int, str], {1: "a"}, None),
    "int keys under Any": (Any, [{1: "a"}], "0"),
    "int keys in a plain dict": (dict, {1: "a"}, ""),
    "keys alike": (dict[int | str, int], {1: 1, "1": 2}, ""),
    "datetime under Any": (Any, {"at": SUMMER}, "at"),
    "set under Any": (Any, {1, 2}, ""),
    "bytes under Any": (Any, b"plain", ""),
    "bytes that are no text": (bytes, b"\xff", ""),
    "model under Any": (Any, [Shape(name="a")], "0"),
    "enum under Any": (Any, Word.A, ""),
    "enum under Any in a union": (int | dict[str, Any], {"a": Word.A}, "a"),
    "nan": (list[float], [NAN, float("inf"), -float("inf")], None),
    "nan in a set": (set[float], {NAN, 1.0}, None),
    "nan in a model": (Ratio, Ratio(value=NAN, parts=[Ratio(value=float("inf"))]), None),
    "nan under Any": (Any, {"a": [NAN]}, "a.0"),
    "infinity under Any": (dict[str, Any], {"a": float("inf")}, "a"),
    "nan for a Decimal": (Decimal, Decimal("NaN"), ""),
    "subclass": (Shape, Circle(name="a"), ""),
    "subclass in a list": (list[Shape], [Shape(name="a"), Circle(name="b")], "1"),
    "subclass of a dataclass": (dict[str, Point], {"a": Flat(1)}, "a"),
    "subclass that may be missing": (Shape | None, Circle(name="a"), ""),
    "subclass in a union": (Shape | Circle, Circle(name="a", radius=2.0), None),
    "union that cannot tell": (Circle | Shape, Shape(name="a"), ""),
    "text that looks like a time": (datetime | str, "2026-01-01T00:00:00", ""),
    "secrets": (Hidden, Hidden(type="pass", metadata=7), None),  # type: ignore[arg-type]
    "secret under Any": (Any, SecretStr("hush-4711"), ""),
    "private attribute as it is made": (Private, Private(), None),
    "private attribute": (Private, hit(), "_hits"),
    "alias": (Aliased, Aliased(no=1), None),
    "computed field": (Computed, Computed(x=2), None),
    "text of JSON": (Json[list[int]], [1, 2], None),
    "wrong field of a dataclass": (list[Point], [Point("4711")], "0.x"),  # type: ignore[arg-type]
    "None in a list": (list[int], [1, None], "1"),
    "None in a dataclass": (Point, Point(None), "x"),  # type: ignore[arg-type]
    "None that is allowed": (list[int | None], [1, None], None),
    "more keys than a TypedDict has": (Keys, {"a": 1, "b": 2}, "b"),
    "zone": (datetime, SUMMER, None),
    "offset of seconds": (datetime, LONG_AGO, ""),
    "scale of a Decimal": (Decimal, Decimal("1.50"), None),
    "broken constraint": (Annotated[int, Field(ge=0)], -1, ""),
    "validator that is not idempotent": (
        Annotated[str, AfterValidator(lambda text: text + "!")],
        "a",
        "",
    ),
    "id": (dict[str, ExecutionId], {"id": ExecutionId.parse(ID)}, None),
    "id for a text": (str, ExecutionId.parse(ID), None),
    "no equality": (Nothing, Nothing(1), None),
    "no equality, and not the same": (Forgetful, Forgetful(1), ""),
    "number of too many digits": (int, 10**5000, ""),
}


@pytest.mark.parametrize(("hint", "value", "at"), ROUND.values(), ids=ROUND)
def test_a_value_comes_back_as_it_went_or_is_refused(hint, value, at):
    codec = Codec(hint)

    if at is None:
        again = codec.read(codec.write(value))
        assert Comparison(is_lenient=True).difference(value, again) is None
    else:
        with pytest.raises(EncodingError) as caught:
            codec.write(value)
        assert caught.value.field() == at
        assert "4711" not in str(caught.value)


def without_hints(value, more=None):
    return value


def with_a_base(value: list[Shape]) -> list[Shape]:
    return value


@pytest.mark.parametrize(
    ("function", "value", "at"),
    [(without_hints, {"a": (1,)}, "a"), (with_a_base, [Circle(name="a")], "0")],
)
def test_arguments_and_results_that_would_change_are_refused(function, value, at):
    spec = spec_of(function)

    with pytest.raises(InvalidInput, match=r"hint.*argument of shop\.task") as caught:
        spec.encode((value,), {})
    assert caught.value.field == f"value.{at}"
    with pytest.raises(InvalidInput, match=r"the result of shop\.task .* hint") as caught:
        spec.encode_result(value)
    assert caught.value.field == f"result.{at}"
    assert ("as its type hint says" in str(caught.value)) is (function is with_a_base)


def test_what_validation_makes_of_an_argument_is_what_comes_back():
    assert carried(takes_tuple, ["1", "x"]) == (1, "x")
    assert carried(takes_model, {"number": "7"}) == Order(number=7)


def login(password: SecretStr, more: Annotated[SecretStr, Field(max_length=3)] = None) -> SecretStr:  # type: ignore[assignment]
    return password


def test_a_secret_travels_as_its_value_and_is_not_shown():
    spec = spec_of(login)

    payload = spec.encode((SecretStr("hush"),), {})

    assert json.loads(payload) == {"password": "hush"}
    assert spec.decode(payload)[0][0].get_secret_value() == "hush"
    assert returned(login, SecretStr("hush")).get_secret_value() == "hush"
    route = Route("default", "default", "shop.login", frozenset())
    assert "hush" not in repr(Submission(id=mint(), route=route, payload=payload))


def test_a_refusal_carries_the_value_nowhere():
    with pytest.raises(InvalidInput) as caught:
        spec_of(login).encode(("a", "secret-4711"), {})

    assert "secret-4711" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def constrained(age: Annotated[int, Field(ge=0)], name: str = "x") -> str:
    return name


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        (("old",), {}, "age"),
        ((-1,), {}, "age"),
        ((None,), {}, "age"),
        ((1,), {"name": 5}, "name"),
        ((1,), {"name": "bad \ud800 text"}, "name"),
        ((), {}, "age"),
        ((1, "x", "more"), {}, "arguments of shop.task"),
        ((1,), {"nmae": "x"}, "nmae"),
        ((1,), {"age": 2}, "age"),
    ],
)
def test_a_wrong_argument_is_refused_and_named(args, kwargs, field):
    with pytest.raises(InvalidInput, match=r"shop\.task") as caught:
        spec_of(constrained).encode(args, kwargs)

    assert field in str(caught.value)


def test_the_refusal_of_a_nested_value_says_where_it_is():
    with pytest.raises(InvalidInput) as caught:
        spec_of(takes_nested).encode(({"a": [{"x": "far"}]},), {})

    assert caught.value.field.startswith("value.a.0")


def test_a_refusal_does_not_repeat_the_value():
    with pytest.raises(InvalidInput) as caught:
        spec_of(constrained).encode(("secret-4711",), {})

    assert "secret-4711" not in str(caught.value)


def anything(a: Any, b: Any = None) -> Any:
    return a, b


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [object(), CIRCULAR, DEEP, b"\xff\xfe", lambda: None, "\ud800", {1: object()}],
    ids=["object", "circular", "deep", "bytes", "function", "surrogate", "inside"],
)
def test_an_argument_that_is_not_json_is_refused_and_named(value):
    try:
        with pytest.raises(InvalidInput) as caught:
            spec_of(anything).encode((1, value), {})
    finally:
        global DEEP
        while DEEP:  # a list this deep must not be freed by recursion
            DEEP = DEEP[0]

    assert caught.value.field == "b"
    assert "shop.task" in caught.value.problem


def test_a_payload_that_no_longer_validates_is_not_decoded():
    for payload, told in (
        (b'{"age": "secret-4711"}', "age: Input should be a valid integer"),
        (b"not json", "Invalid JSON"),
        (b"{}", "age: Field required"),
        (b"[]", "Input should be an object"),
    ):
        with pytest.raises(InvalidInput, match=rf"payload: .*shop\.task.*{told}") as caught:
            spec_of(constrained).decode(payload)
        assert "secret" not in str(caught.value)


def test_a_parameter_that_got_a_default_since_needs_no_value():
    assert spec_of(defaults).decode(b'{"a": 1, "c": 4}') == ([1, "b", 4], {})


def result_int() -> int:
    return 1


@pytest.mark.parametrize("value", ["secret-4711", None, object(), 1.5])
def test_a_result_of_another_type_is_not_stored(value):
    with pytest.raises(InvalidInput, match=r"result: the result of shop\.task") as caught:
        spec_of(result_int).encode_result(value)
    assert repr(value) not in str(caught.value)


def test_a_payload_is_an_object_of_the_arguments_given():
    payload = spec_of(variadic).encode((1, 2), {"flag": True, "w": 1.0})

    assert json.loads(payload) == {"a": 1, "rest": [2], "flag": True, "named": {"w": 1.0}}


def bad_hint(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def test_a_hint_that_cannot_be_found_is_named():
    with pytest.raises(InvalidInput, match=r"task shop.task.*Nowhere"):
        spec_of(bad_hint).encode((1,), {})


class Opaque:
    pass


def opaque_hint(a: Opaque) -> None:
    pass


def opaque_result() -> Opaque:
    return Opaque()


def test_a_type_that_cannot_travel_is_named():
    with pytest.raises(InvalidInput, match=r"task shop.task.*parameters.*Opaque"):
        spec_of(opaque_hint).encode((Opaque(),), {})
    with pytest.raises(InvalidInput, match=r"task shop.task.*result.*Opaque"):
        spec_of(opaque_result).encode_result(Opaque())
