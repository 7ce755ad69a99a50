"""Whether the type of a result fits a parameter, told by the hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import IntEnum
from typing import Annotated, Any, Literal, NewType, Optional, Protocol, TypedDict, TypeVar

import pytest

from flowfabric.tasks.assignability import (
    accepts_none,
    element_of,
    is_assignable,
    round_trips,
    type_text,
    value_of,
)

UserId = NewType("UserId", int)
T = TypeVar("T")


class Colour(IntEnum):
    RED = 1


class Animal: ...


class Dog(Animal): ...


class Named(Protocol):
    name: str


class Point(TypedDict):
    x: int


FITTING = [
    (int, int),
    (int, float),
    (bool, int),
    (Colour, int),
    (Dog, Animal),
    (Dog, Named),
    (int, Any),
    (Any, int),
    (int, object),
    (int, T),
    (None, None),
    (None, int | None),
    (int, int | None),
    (int | str, str | int | None),
    (int | None, Optional[int]),  # noqa: UP045
    (UserId, int),
    (Annotated[int, "a note"], int),
    (int, Annotated[int, "a note"]),
    (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]),
    (list[int], list[int]),
    (list[int], Sequence[float]),
    (list[int], Iterable[int]),
    (list[Dog], list[Animal]),
    (list, list[int]),
    (list[int], list),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, str], tuple[int, str]),
    (tuple[int, int], Sequence[int]),
    (dict[str, int], Mapping[str, int]),
    (dict[str, int], Iterable[str]),
    (Point, dict[str, Any]),
]
MISFITTING = [
    (int, str),
    (str, int),
    (float, int),
    (Colour, float),
    (int, bool),
    (Animal, Dog),
    (None, int),
    (int | None, int),
    (int | str, int),
    (str, Literal["a"]),
    (Literal["c"], Literal["a", "b"]),
    (Literal[1], Literal[True]),
    (list[int], list[str]),
    (list[int | None], list[int]),
    (set[int], list[int]),
    (Sequence[int], list[int]),
    (tuple[int, str], tuple[int, int]),
    (tuple[int, int], tuple[int]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, str], Sequence[int]),
    (dict[str, int], dict[str, str]),
    (dict[str, int], list[str]),
    (dict[str, int], Point),
]


@pytest.mark.parametrize(("source", "target"), FITTING, ids=str)
def test_what_fits(source, target):
    assert is_assignable(source, target)


@pytest.mark.parametrize(("source", "target"), MISFITTING, ids=str)
def test_what_does_not(source, target):
    assert not is_assignable(source, target)


CARRIED = [
    (int, int),
    (int, float),
    (Colour, int),
    (Any, Dog),
    (Any, Any),
    (int, Any),
    (list[dict[str, int | None]], Any),
    (Point, Any),
    (Point, dict[str, Any]),
    (Literal["a"], Any),
    (Dog, Dog | None),
    (Dog, Animal | Dog),
    (list[Dog], list[Dog]),
    (list[int], Sequence[float]),
    (list[int], list),
    (tuple[int, Dog], tuple[int, Dog]),
    (tuple[int, ...], tuple[int, ...]),
    (dict[str, Dog], Mapping[str, Dog]),
]
CHANGED = [
    (Dog, Any),
    (Dog, Animal),
    (Dog, Animal | None),
    (Dog | None, Animal | None),
    (datetime, Any),
    (datetime, date),
    (Colour, Any),
    (list[Dog], list[Animal]),
    (list[Dog], list),
    (list[Dog], Any),
    (tuple[int, int], Any),
    (tuple[int, int], Sequence[int]),
    (dict[int, int], Any),
    (dict[int, int], dict),
    (dict[str, Dog], Mapping[str, Animal]),
    (set[int], object),
]


@pytest.mark.parametrize(("source", "target"), CARRIED, ids=str)
def test_what_is_the_same_when_it_is_read_as_another_type(source, target):
    assert is_assignable(source, target)
    assert round_trips(source, target)


@pytest.mark.parametrize(("source", "target"), CHANGED, ids=str)
def test_what_is_not_the_same_when_it_is_read_as_another_type(source, target):
    assert is_assignable(source, target)
    assert not round_trips(source, target)


def test_a_hint_need_not_be_hashable():
    assert is_assignable(Annotated[int, []], int)
    assert not is_assignable(Annotated[int, []], str)


def test_who_takes_none():
    assert accepts_none(int | None)
    assert accepts_none(Any)
    assert not accepts_none(int)


@pytest.mark.parametrize(
    ("hint", "takes"),
    [
        (list[int], int),
        (Sequence[int], int),
        (set[int], int),
        (tuple[str, int], int),
        (tuple[int, ...], int),
        (list, Any),
        (Any, Any),
        (tuple[int], None),
        (str, None),
        (int, None),
        (dict[str, int], None),
    ],
    ids=str,
)
def test_what_a_place_takes(hint, takes):
    assert element_of(hint, 1, 2) == takes


def test_what_a_key_takes():
    assert value_of(dict[str, int], "x") is int
    assert value_of(Mapping[str, int], "x") is int
    assert value_of(Point, "x") is int
    assert value_of(Point, "y") is None
    assert value_of(list[int], "x") is None


def test_types_are_shown_as_they_are_written():
    assert type_text(int | None) == "int | None"
    assert type_text(Optional[list[int]]) == "list[int] | None"  # noqa: UP045
    assert type_text(Mapping[str, Any]) == "Mapping[str, Any]"
    assert type_text(Dog) == "Dog"
