"""Conditions of a wait: signals and waitpoints, combined by `every` and `at_least`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError

from flowfabric.core.errors import InvalidInput
from flowfabric.core.signal import SignalRecord
from flowfabric.handlers.signals import signal_codec
from flowfabric.handlers.waitpoints import Waitpoint
from flowfabric.tasks.codec import describe
from flowfabric.tasks.signals import signal_schema

T = TypeVar("T")
Distinct = Literal["signals", "waitpoints", "sources"]

MAX_DEPTH = 4


class Condition(ABC, Generic[T]):
    """A condition that a handler waits for with `ctx.wait_for`."""

    depth = 0

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the condition as the engine stores it."""

    def ones(self) -> Sequence[One[Any]]:
        """Return the signals and waitpoints that the condition is made of."""
        return ()

    @abstractmethod
    def read(self, signals: Sequence[SignalRecord]) -> T:
        """Return the values of the signals that satisfied the condition.

        The values are nested in the same way as the members of the condition.
        """


class One(Condition[T]):
    """A condition on one signal, given by its name, or on the answer of one waitpoint."""

    def __init__(self, key: str, hint: Any, waitpoint: Waitpoint | None = None) -> None:
        self._key = key
        self._waitpoint = waitpoint
        self._codec = signal_codec(key, hint)
        self.schema = signal_schema(self._codec)
        # The id of the schema, once it is registered.
        self.schema_id: int | None = None

    def to_json(self) -> dict[str, Any]:
        typed = {} if self.schema_id is None else {"schema": self.schema_id}
        return {**dict([self.address]), **typed}

    @property
    def address(self) -> tuple[str, str]:
        """`signal` and the name of the signal, or `waitpoint` and the id of the waitpoint."""
        if self._waitpoint is not None:
            return "waitpoint", str(self._waitpoint.id)
        return "signal", self._key

    def ones(self) -> Sequence[One[Any]]:
        return [self]

    def matches(self, signal: SignalRecord) -> bool:
        if self._waitpoint is not None:
            return signal.waitpoint_id == self._waitpoint.id
        return signal.waitpoint_id is None and signal.name == self._key

    def value_of(self, signal: SignalRecord) -> T:
        try:
            value: T = self._codec.read(signal.payload or b"null")
        except ValidationError as error:
            raise ValueError(f"signal {self._key}: {describe(error)}") from None
        return value

    def read(self, signals: Sequence[SignalRecord]) -> T:
        return self.value_of(next(one for one in signals if self.matches(one)))


class Every(Condition[tuple[Any, ...]]):
    """A condition that needs all its members. One signal can satisfy several members."""

    def __init__(self, members: Sequence[Condition[Any]]) -> None:
        self._members = _checked("every", members)
        self.depth = 1 + max(one.depth for one in self._members)

    def to_json(self) -> dict[str, Any]:
        return {"every": [one.to_json() for one in self._members]}

    def ones(self) -> Sequence[One[Any]]:
        return [each for one in self._members for each in one.ones()]

    def read(self, signals: Sequence[SignalRecord]) -> tuple[Any, ...]:
        return tuple(one.read(signals) for one in self._members)


class AtLeast(Condition[list[Any]]):
    """A condition that needs at least `n` signals for its members."""

    depth = 1

    def __init__(self, n: int, members: Sequence[Condition[Any]], distinct: Distinct) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidInput(field="n", problem="must be a whole number, 1 or more")
        if distinct not in ("signals", "waitpoints", "sources"):
            raise InvalidInput(
                field="distinct", problem="must be 'signals', 'waitpoints' or 'sources'"
            )
        ones: list[One[Any]] = []
        for one in _checked("at_least", members):
            if not isinstance(one, One):
                raise InvalidInput(
                    field="at_least", problem="its members must be signals or waitpoints"
                )
            ones.append(one)
        different = len({one.address for one in ones})
        if distinct == "waitpoints" and n > different:
            raise InvalidInput(
                field="n", problem=f"is {n}, but there are {different} different members"
            )
        self._n, self._members, self._distinct = n, ones, distinct

    def to_json(self) -> dict[str, Any]:
        members = [one.to_json() for one in self._members]
        return {"at_least": self._n, "of": members, "distinct": self._distinct}

    def ones(self) -> Sequence[One[Any]]:
        return self._members

    def read(self, signals: Sequence[SignalRecord]) -> list[Any]:
        found: list[Any] = []
        seen: set[Any] = set()
        for signal in signals:
            member = next((one for one in self._members if one.matches(signal)), None)
            if member is None or (mark := self._mark(signal)) in seen:
                continue
            seen.add(mark)
            found.append(member.value_of(signal))
            if len(found) == self._n:
                break
        return found

    def _mark(self, signal: SignalRecord) -> Any:
        if self._distinct == "sources":
            return (signal.source_type, signal.source_identity or "")
        if self._distinct == "waitpoints":
            return signal.waitpoint_id or signal.name
        return signal.id


def signal(name: str, type: Any = Any, /) -> Condition[Any]:
    """Return the condition that a signal with this name has come."""
    return One(name, type)


def answer(waitpoint: Waitpoint, type: Any = Any, /) -> Condition[Any]:
    """Return the condition that a waitpoint was answered."""
    return One(waitpoint.key, type, waitpoint)


def every(*members: Condition[Any]) -> Condition[tuple[Any, ...]]:
    """Return the condition that all members are satisfied. Its value is a tuple of their values."""
    return Every(members)


def at_least(
    n: int, /, *members: Condition[Any], distinct: Distinct = "signals"
) -> Condition[list[Any]]:
    """Return a condition that is satisfied when at least `n` signals for its members have come.

    The value of the condition is the list of the values of the first `n` signals. By default every
    signal counts. If `distinct` is "waitpoints", only one signal counts for each waitpoint or
    signal name. If `distinct` is "sources", only one signal counts for each sender.
    """
    return AtLeast(n, members, distinct)


def _checked(field: str, members: Sequence[Condition[Any]]) -> list[Condition[Any]]:
    several = list(members)
    if not 1 <= len(several) <= 64:
        raise InvalidInput(field=field, problem="must have 1 to 64 members")
    for one in several:
        if not isinstance(one, Condition):
            raise InvalidInput(
                field=field, problem=f"its members must be conditions, not {type(one).__name__}"
            )
        if one.depth >= MAX_DEPTH:
            raise InvalidInput(field=field, problem=f"must not be nested deeper than {MAX_DEPTH}")
    return several
