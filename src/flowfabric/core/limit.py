"""Limits and budgets of tasks: how many executions run, how many start, and what they may spend."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID

from flowfabric.core.errors import InvalidInput
from flowfabric.core.states import OnExceed, Overflow

MAX_LIMIT_NAME_BYTES = 256
MAX_LIMIT_KEY_BYTES = 256
MAX_DIMENSION_BYTES = 64
MAX_AMOUNT = 2**63 - 1
MAX_LIMITS = 20
# Money is stored in millionths, because the engine counts whole numbers.
MICROS = 1_000_000
# The dimension of a budget that counts money.
USD = "usd"

Key: TypeAlias = str | Callable[..., object] | None
Money: TypeAlias = Decimal | str | int
T = TypeVar("T", bound="Limit | Budget")

_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), timedelta(seconds=1)),
    **dict.fromkeys(("m", "min", "minute"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hour"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day"), timedelta(days=1)),
}
_RATE = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{0,6})\s*([a-z]+)")
_MOST_RUNNING = 2_000_000_000
# Control characters are refused, and lone surrogates, which UTF-8 cannot encode.
_NAME = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff]+")
_KEY = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `number` starts in any period of the length `window`."""

    number: int
    window: timedelta

    @classmethod
    def parse(cls, text: str, name: str = "rate") -> Rate:
        """Read a rate such as `100/min`, `5/s` or `1000/15min`."""
        found = _RATE.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        unit = None if found is None else _UNITS.get(found[3].removesuffix("s") or "s")
        if found is None or unit is None:
            raise InvalidInput(
                field=name,
                problem=f"must be a number of starts per time, as in '100/min', not {text!r:.60}; "
                "the time is s, min, h or d, or several, as in '5/15min'",
            )
        number, count = int(found[1]), int(found[2] or 1)
        if number < 1 or count < 1:
            raise InvalidInput(field=name, problem=f"must be at least 1 per time, not {text!r:.60}")
        window = unit * count
        if window > timedelta(days=31):
            raise InvalidInput(field=name, problem="must count over a window of at most 31 days")
        return cls(number, window)

    def __str__(self) -> str:
        for name, unit in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            count, rest = divmod(self.window.total_seconds(), unit)
            if count and not rest:
                return f"{self.number}/{int(count) if count > 1 else ''}{name}"
        return f"{self.number}/{self.window.total_seconds():g}s"


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit how many executions run at once, how many start in a window, or both.

    `Limit("openai", concurrency=10, rate="100/min")`. Tasks that name the same limit share it.
    `key` is the name of an argument of the task, or a function whose parameters are named like
    arguments of the task. If `key` is given, every value of the key has its own slots and its own
    rate.

    An execution for which there is no room waits in a line. If `overflow` is `"refuse"`, its
    submission raises LimitReached instead, and nothing is stored.

    A limit without numbers uses the numbers that another task or an operator has given.
    """

    name: str
    concurrency: int | None = None
    rate: str | Rate | None = None
    key: Key = None
    overflow: Literal["queue", "refuse"] = "queue"

    def __post_init__(self) -> None:
        check_limit_name("limit.name", self.name)
        if self.concurrency is not None:
            check_whole_number("limit.concurrency", self.concurrency, most=_MOST_RUNNING)
        if self.rate is not None and not isinstance(self.rate, Rate):
            object.__setattr__(self, "rate", Rate.parse(self.rate, "limit.rate"))
        check_key("limit.key", self.key)
        if self.overflow not in tuple(Overflow):
            raise InvalidInput(field="limit.overflow", problem="must be 'queue' or 'refuse'")

    @property
    def is_keyed(self) -> bool:
        return self.key is not None

    @property
    def has_numbers(self) -> bool:
        return self.concurrency is not None or self.rate is not None

    @property
    def parsed_rate(self) -> Rate | None:
        """The rate as a Rate, or None if the limit has no rate."""
        return self.rate if isinstance(self.rate, Rate) else None

    def to_json(self) -> dict[str, Any]:
        """Return the limit as the registry of tasks stores it."""
        return _registered("quota", self)

    def declaration(self) -> dict[str, Any]:
        """Return what `register_gates` takes: the name, and the numbers if the limit has any."""
        found: dict[str, Any] = {"kind": "quota", "name": self.name}
        if self.concurrency is not None:
            found["concurrency"] = self.concurrency
        if (rate := self.parsed_rate) is not None:
            found["rate"] = rate.number
            found["rate_window_ms"] = rate.window // timedelta(milliseconds=1)
        if self.has_numbers or self.overflow == "refuse":
            found["overflow"] = self.overflow
        return found


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit what executions may spend, in money, tokens or anything else that is counted.

    `Budget("monthly", key="tenant", usd="50.00", tokens=1_000_000, period="month")`. A handler
    reports what it used with `ctx.usage(tokens=120, usd="0.02")`. Money is text, a Decimal or a
    whole number, never a float. `amounts` holds limits of other dimensions, as whole numbers.

    `period` says when the budget is reset: each hour, day, week or month in the time zone `tz`. If
    `period` is a timedelta, the budget is reset at this interval, counted from the creation of the
    budget. If `period` is None, the budget is never reset. While a budget has no room, no execution
    under it starts.

    `on_exceed` decides what follows if a report exceeds a limit:

    - `"fail"`: the report is not counted, and it raises BudgetExceeded in the handler.
    - `"suspend"`: the report is not counted, and the execution waits until the budget is reset or
      raised.
    - `"warn"`: the report is counted, and an event is written.
    """

    name: str
    key: Key = None
    usd: Money | None = None
    tokens: int | None = None
    period: Literal["hour", "day", "week", "month"] | timedelta | None = None
    tz: str = "UTC"
    on_exceed: Literal["fail", "suspend", "warn"] = "fail"
    amounts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_limit_name("budget.name", self.name)
        check_key("budget.key", self.key)
        for name in ("usd", "tokens"):
            if name in self.amounts:
                raise InvalidInput(
                    field=f"budget.amounts.{name}", problem=f"give it as {name}=... instead"
                )
        if "name" in self.amounts:
            raise InvalidInput(
                field="budget.amounts.name",
                problem="cannot be a dimension: ctx.usage has an argument of this name",
            )
        given = dimensions("budget", usd=self.usd, tokens=self.tokens, **self.amounts)
        for name, amount in given.items():
            if amount < 1:
                raise InvalidInput(field=f"budget.{name}", problem="must be more than 0")
        if isinstance(self.period, timedelta):
            if not timedelta(minutes=1) <= self.period <= timedelta(days=3660):
                raise InvalidInput(
                    field="budget.period", problem="must be from a minute to ten years"
                )
        elif self.period is not None and self.period not in ("hour", "day", "week", "month"):
            raise InvalidInput(
                field="budget.period",
                problem="must be 'hour', 'day', 'week', 'month' or a timedelta",
            )
        _check_zone(self.tz)
        if self.on_exceed not in tuple(OnExceed):
            raise InvalidInput(
                field="budget.on_exceed", problem="must be 'fail', 'suspend' or 'warn'"
            )

    @property
    def is_keyed(self) -> bool:
        return self.key is not None

    @property
    def has_numbers(self) -> bool:
        return bool(self.limits)

    @property
    def limits(self) -> dict[str, int]:
        """The hard limits by dimension; money in millionths."""
        return dimensions("budget", usd=self.usd, tokens=self.tokens, **self.amounts)

    def to_json(self) -> dict[str, Any]:
        """Return the budget as the registry of tasks stores it."""
        return _registered("budget", self)

    def declaration(self) -> dict[str, Any]:
        """Return what `register_gates` takes: the name, and the numbers if the budget has any."""
        found: dict[str, Any] = {"kind": "budget", "name": self.name}
        if not self.has_numbers:
            return found
        found["limits"] = {name: {"hard": amount} for name, amount in self.limits.items()}
        found["on_exceed"] = self.on_exceed
        if isinstance(self.period, timedelta):
            found["period_ms"] = self.period // timedelta(milliseconds=1)
        elif self.period is not None:
            found["period"] = self.period
            found["zone"] = self.tz
        return found


@dataclass(frozen=True, slots=True)
class Gate:
    """The counter of one limit for one key. The key is '' if the limit has no key.

    The id is a hash, and the engine computes the same hash. If a `Limit` has a key, its gate with
    the key '' only declares the limit, and the engine does not store this gate.
    """

    namespace: str
    limit: Limit | Budget
    key: str = ""

    @property
    def id(self) -> int:
        kind = "budget" if isinstance(self.limit, Budget) else "quota"
        return gate_id(kind, self.namespace, self.limit.name, self.key)

    def declaration(self) -> dict[str, Any]:
        """Return what `register_gates` takes for this gate."""
        found = self.limit.declaration()
        if self.key:
            found["key"] = self.key
        elif isinstance(self.limit, Limit) and self.limit.is_keyed:
            found["is_keyed"] = True
        return found


_BUDGET_IDS = 1 << 62


@lru_cache(maxsize=65536)
def gate_id(kind: str, namespace: str, name: str, key: str) -> int:
    """Return the id of a gate: a hash of 62 bits. For a budget, 2 to the power of 62 is added."""
    digest = sha256("\x01".join((kind, namespace, name, key)).encode()).digest()
    number = int.from_bytes(digest[:8], "big") & (_BUDGET_IDS - 1)
    return number + _BUDGET_IDS if kind == "budget" else number


def _check_zone(name: object) -> None:
    from zoneinfo import ZoneInfo  # slow to import, and few programs have budgets

    try:
        ZoneInfo(name)  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError, OSError):
        raise InvalidInput(
            field="budget.tz", problem=f"is not a known time zone: {name!r:.60}"
        ) from None


def _registered(kind: str, limit: Limit | Budget) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": limit.name,
        "is_keyed": limit.is_keyed,
        "argument": limit.key if isinstance(limit.key, str) else None,
    }


def check_limit_name(field: str, name: object) -> None:
    """Refuse an invalid name of a limit, a budget or a dimension, as the engine would."""
    if not isinstance(name, str):
        raise InvalidInput(field=field, problem=f"must be text, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or len(name.encode()) > MAX_LIMIT_NAME_BYTES:
        raise InvalidInput(
            field=field,
            problem=f"must be 1 to {MAX_LIMIT_NAME_BYTES} bytes without whitespace or control "
            "characters",
        )
    if name.startswith("ff:"):
        raise InvalidInput(
            field=field, problem="must not begin with ff:, which is kept for the limits of lanes"
        )


def check_key(field: str, key: object) -> None:
    if key is None or (isinstance(key, str) and key) or callable(key):
        return
    raise InvalidInput(
        field=field, problem="must be the name of an argument, or a function of the arguments"
    )


def check_whole_number(
    field: str, number: object, *, least: int = 1, most: int = MAX_AMOUNT
) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            field=field, problem=f"must be a whole number, not {type(number).__name__}"
        )
    if not least <= number <= most:
        raise InvalidInput(field=field, problem=f"must be from {least} to {most}, not {number}")


def micros(field: str, amount: object) -> int:
    """Return an amount of money in millionths; refuse a float, which is not exact."""
    if isinstance(amount, float):
        raise InvalidInput(
            field=field, problem=f"must be text or a Decimal, as in '{amount:.2f}', not a float"
        )
    if isinstance(amount, bool) or not isinstance(amount, Decimal | str | int):
        raise InvalidInput(
            field=field,
            problem=f"must be text, a Decimal or a whole number, not {type(amount).__name__}",
        )
    try:
        exact = Decimal(amount)
        scaled = exact * MICROS
        whole = int(scaled)
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidInput(
            field=field, problem=f"is not an amount of money: {amount!r:.60}"
        ) from None
    if whole != scaled:
        raise InvalidInput(
            field=field, problem=f"must have at most six decimal places, not {amount!r:.60}"
        )
    return whole


def money(amount: int) -> str:
    """Return an amount in millionths as text, with at least two decimal places."""
    text = f"{Decimal(amount) / MICROS:.6f}"
    whole, _, parts = text.partition(".")
    return f"{whole}.{parts.rstrip('0').ljust(2, '0')}"


def amount_text(dimension: str, amount: int | None) -> str:
    """Return an amount of a dimension as text for people. Return a dash for None."""
    if amount is None:
        return "-"
    return money(amount) if dimension == USD else str(amount)


def dimensions(_what: str, /, **amounts: object) -> dict[str, int]:
    """Check amounts, and return them by dimension as whole numbers. Money is in millionths.

    An amount that is None is left out. An error names the field as `_what`, a dot and a dimension.
    """
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        if amount is None:
            continue
        field = f"{_what}.{name}"
        check_limit_name(field, name)
        if len(name.encode()) > MAX_DIMENSION_BYTES:
            raise InvalidInput(
                field=field, problem=f"must have a name of at most {MAX_DIMENSION_BYTES} bytes"
            )
        if name == USD:
            amount = micros(field, amount)
        check_whole_number(field, amount, least=0)
        assert isinstance(amount, int)
        found[name] = amount
    return found


def key_text(field: str, value: object) -> str:
    """Return the value of a key (text, a whole number, a Decimal, a UUID or a date) as text."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or not isinstance(
        value, str | int | UUID | Decimal | date | datetime
    ):
        raise InvalidInput(
            field=field,
            problem="must be text, a whole number, a Decimal, a UUID or a date; "
            + ("it is None" if value is None else f"it is a {type(value).__name__}"),
        )
    text = value.isoformat() if isinstance(value, date) else str(value)
    if not _KEY.fullmatch(text) or len(text.encode()) > MAX_LIMIT_KEY_BYTES:
        raise InvalidInput(
            field=field,
            problem=f"must be 1 to {MAX_LIMIT_KEY_BYTES} bytes without control characters",
        )
    return text


def key_names(field: str, key: Key, known: Sequence[str], task: str) -> tuple[str, ...]:
    """Return the names of the arguments that a key needs. Refuse a name that is not in `known`."""
    if key is None:
        return ()
    if isinstance(key, str):
        names: Iterable[str] = (key,)
    else:
        try:
            parameters = inspect.signature(key).parameters.values()
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                field=field, problem=f"must be a function with parameters: {error}"
            ) from error
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [one.name for one in parameters]
        if any(one.kind not in kinds for one in parameters):
            raise InvalidInput(
                field=field, problem="must be a function whose parameters can be passed by name"
            )
    for name in names:
        if name not in known:
            raise InvalidInput(
                field=field,
                problem=f"{name!r} is not an argument of {task}; "
                f"its arguments are {', '.join(known) or 'none'}",
            )
    return tuple(names)


def several(field: str, kind: type[T], given: T | Sequence[T] | None) -> tuple[T, ...]:
    """Return limits as a tuple. `given` is one limit, a sequence of limits, or None.

    Refuse a value that is not of the class `kind`, and two limits with the same name.
    """
    if given is None:
        return ()
    found = (given,) if isinstance(given, kind) else given
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise InvalidInput(
            field=field,
            problem=f"must be a {kind.__name__} or a list of them, not {type(given).__name__}",
        )
    for one in found:
        if not isinstance(one, kind):
            raise InvalidInput(
                field=field,
                problem=f"must be a {kind.__name__} or a list of them, not {type(one).__name__}",
            )
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(field=field, problem=f"names {name!r} twice")
    return tuple(found)
