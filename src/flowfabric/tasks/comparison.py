"""Compares a value that was read back with the value that was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from flowfabric.tasks.encoding_error import EncodingError, kind_of, wrong_class

_PLAIN = frozenset({str, int, bool, type(None), bytes, date, UUID})
_MISSING = object()
_CHANGED = "would read back with another value"


class Comparison:
    """Compares values and types at every level. NaN equals NaN.

    If `is_lenient` is true, a number or text may come back as an equal value of another type, for
    example an int as a float. But a member of one of the enumerations in `enums` must keep its
    type.
    """

    def __init__(self, *, is_lenient: bool, enums: AbstractSet[type] = frozenset()) -> None:
        self._is_lenient = is_lenient
        self._enums = enums
        # Whether there was a value that cannot be compared.
        self.saw_opaque = False

    def difference(self, value: Any, again: Any) -> EncodingError | None:
        """Return the first difference between a value and its copy that was read back."""
        if value is again:
            return None
        if type(value) is not type(again):
            return self._other_type(value, again)
        if type(value) in _PLAIN:
            return None if value == again else EncodingError(_CHANGED)
        if isinstance(value, BaseModel):
            return self._models(value, again)
        if dataclasses.is_dataclass(value):
            names = [one.name for one in dataclasses.fields(value)]
            return self._parts(
                {name: getattr(value, name, _MISSING) for name in names},
                {name: getattr(again, name, _MISSING) for name in names},
            )
        if isinstance(value, dict | Mapping):
            return self._mappings(value, again)
        if isinstance(value, list | tuple):
            return self._sequences(value, again)
        if isinstance(value, AbstractSet):
            return self._sets(value, again)
        return None if self._is_same(value, again) else EncodingError(_CHANGED)

    def _other_type(self, value: Any, again: Any) -> EncodingError | None:
        wanted = type(again)
        is_lenient = self._is_lenient and type(value) not in self._enums
        if is_lenient and wanted in (int, float, str, bytes, Decimal):
            is_wider = wanted in (float, Decimal) and isinstance(value, int)
            if (is_wider or isinstance(value, wanted)) and self._is_same(value, again):
                return None
        if isinstance(value, wanted):
            return wrong_class(value, wanted)
        return EncodingError(
            f"is {kind_of(value)} and would read back as {kind_of(again)}: convert it, or use a "
            "hint that names its type and no other type with the same JSON"
        )

    def _models(self, value: BaseModel, again: BaseModel) -> EncodingError | None:
        for one, other in (
            (value.__dict__, again.__dict__),
            (value.__pydantic_extra__, again.__pydantic_extra__),
        ):
            names = type(value).model_fields if one is value.__dict__ else one or ()
            unfit = self._parts(
                {name: (one or {}).get(name, _MISSING) for name in names},
                {name: (other or {}).get(name, _MISSING) for name in names},
            )
            if unfit is not None:
                return unfit
        unfit = self._parts(value.__pydantic_private__ or {}, again.__pydantic_private__ or {})
        if unfit is not None:
            unfit.problem += " (private attributes are not stored: make it a field)"
        return unfit

    def _parts(self, values: Mapping[str, Any], others: Mapping[str, Any]) -> EncodingError | None:
        for name, value in values.items():
            other = others.get(name, _MISSING)
            if (value is _MISSING) != (other is _MISSING):
                return EncodingError("would not read back").under(name)
            if (unfit := self.difference(value, other)) is not None:
                return unfit.under(name)
        return None

    def _mappings(self, value: Mapping[Any, Any], again: Mapping[Any, Any]) -> EncodingError | None:
        if len(value) != len(again):
            return EncodingError("has several keys that are the same in JSON")
        for (key, one), (other_key, other) in zip(value.items(), again.items(), strict=True):
            if (unfit := self.difference(key, other_key)) is not None:
                unfit.problem = f"has a key that {unfit.problem}"
                return unfit
            if (unfit := self.difference(one, other)) is not None:
                return unfit.under(key)
        return None

    def _sets(self, value: AbstractSet[Any], again: AbstractSet[Any]) -> EncodingError | None:
        if len(value) != len(again):
            return EncodingError("has several members that are the same in JSON")
        others = {one: one for one in again}
        strange = []
        for one in value:
            if one not in others:
                strange.append(one)
            elif (unfit := self.difference(one, others.pop(one))) is not None:
                return unfit
        # The values that are left are NaN or cannot be compared with ==. Compare them in order.
        for one, other in zip(strange, others, strict=True):
            if (unfit := self.difference(one, other)) is not None:
                return unfit
        return None

    def _sequences(self, value: Iterable[Any], again: Iterable[Any]) -> EncodingError | None:
        several, others = list(value), list(again)
        if len(several) != len(others):
            return EncodingError(f"has {len(several)} items and would read back with {len(others)}")
        for index, (one, other) in enumerate(zip(several, others, strict=True)):
            if (unfit := self.difference(one, other)) is not None:
                return unfit.under(index)
        return None

    def _is_same(self, value: Any, again: Any) -> bool:
        if isinstance(value, Decimal) and isinstance(again, Decimal):
            return value.as_tuple() == again.as_tuple()  # 1.0 is not 1.00
        if isinstance(value, datetime | time) and value.tzinfo is None and value.fold != again.fold:
            return False
        if isinstance(value, datetime) and value.utcoffset() != again.utcoffset():
            return False
        if isinstance(value, complex) and isinstance(again, complex):
            parts = ((value.real, again.real), (value.imag, again.imag))
            return all(one == other or (one != one and other != other) for one, other in parts)
        equality: Any = type(value).__eq__
        if equality is object.__eq__:
            self.saw_opaque = True
            return True
        try:
            return bool(value == again) or bool(value != value and again != again)
        except (TypeError, ValueError):  # an array compares item by item
            self.saw_opaque = True
            return True
