"""The limits of a task, and the keys that follow from the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput
from flowfabric.core.limit import MAX_LIMITS, Budget, Gate, Key, Limit, key_names, key_text
from flowfabric.tasks.codec import codec_for
from flowfabric.tasks.placeholders import Placeholder, leaf_values

if TYPE_CHECKING:
    from flowfabric.tasks.spec import TaskSpec


@dataclass(frozen=True)
class Limits:
    """The limits and budgets of a task, and the key by which its submissions take turns."""

    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
    fair_by: Key = None

    def __post_init__(self) -> None:
        if len(self.limits) + len(self.budgets) > MAX_LIMITS:
            raise InvalidInput(
                field="limit", problem=f"a task has at most {MAX_LIMITS} limits and budgets"
            )

    @property
    def all(self) -> tuple[Limit | Budget, ...]:
        return (*self.limits, *self.budgets)

    @property
    def is_empty(self) -> bool:
        return not self.all and self.fair_by is None

    @cached_property
    def is_keyed(self) -> bool:
        """Whether a key depends on the arguments of a call."""
        return self.fair_by is not None or any(one.is_keyed for one in self.all)

    def extended(
        self, limits: tuple[Limit, ...], budgets: tuple[Budget, ...], fair_by: Key
    ) -> Limits:
        """Return these limits together with more limits.

        An added limit replaces a limit of the same name.
        """
        every_limit = {one.name: one for one in (*self.limits, *limits)}
        every_budget = {one.name: one for one in (*self.budgets, *budgets)}
        return Limits(
            tuple(every_limit.values()),
            tuple(every_budget.values()),
            self.fair_by if fair_by is None else fair_by,
        )

    def check(self, spec: TaskSpec) -> None:
        """Refuse a key that names no argument of the task."""
        known = list(inspect.signature(spec.function).parameters)
        for field, key in self._keys():
            key_names(field, key, known, spec.name)

    def facts(
        self,
        namespace: str,
        spec: TaskSpec,
        arguments: Mapping[str, Any],
        numbers: Mapping[str, Limit],
        amounts: Mapping[str, Budget],
    ) -> dict[str, Any]:
        """Return the fields of a submission for its quotas, its budgets and its fair key.

        The keys are computed from `arguments`. `numbers` and `amounts` are the limits and the
        budgets that the app declares, by name. A task can name a limit or budget without numbers.
        If the app declares this limit or budget, the app's numbers apply.
        """
        if self.is_empty:
            return {}
        found: dict[str, Any] = {}
        if self.limits:
            found["quotas"] = tuple(
                Gate(
                    namespace,
                    numbers.get(one.name, one),
                    _value(f"limit {one.name}: key", one.key, spec, arguments),
                )
                for one in self.limits
            )
        if self.budgets:
            found["budgets"] = tuple(
                Gate(
                    namespace,
                    amounts.get(one.name, one),
                    _value(f"budget {one.name}: key", one.key, spec, arguments),
                )
                for one in self.budgets
            )
        if self.fair_by is not None:
            found["fair_key"] = _value("fair_by", self.fair_by, spec, arguments)
        return found

    def _keys(self) -> list[tuple[str, Key]]:
        return [
            *((f"limit {one.name}: key", one.key) for one in self.limits),
            *((f"budget {one.name}: key", one.key) for one in self.budgets),
            ("fair_by", self.fair_by),
        ]


NO_LIMITS = Limits()


def _value(field: str, key: Key, spec: TaskSpec, arguments: Mapping[str, Any]) -> str:
    """Compute the text of a key from the arguments of a call. If `key` is None, return ""."""
    if key is None:
        return ""
    names = key_names(field, key, list(spec.signature.parameters), spec.name)
    values = {name: _argument(field, spec, name, arguments) for name in names}
    if isinstance(key, str):
        return key_text(field, values[key])
    try:
        value = key(**values)
    except Exception as error:
        raise InvalidInput(
            field=field, problem=f"its function raised {type(error).__name__}: {error}"
        ) from error
    return key_text(field, value)


def _argument(field: str, spec: TaskSpec, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return an argument as the handler will get it."""
    if name not in arguments:
        return spec.signature.parameters[name].default
    value = arguments[name]
    for one in leaf_values(value):
        if isinstance(one, Placeholder):
            raise InvalidInput(
                field=field,
                problem=f"needs the argument {name}, which is {one.origin}: a key must be known "
                "when the flow is stored",
            )
    try:
        return codec_for(spec.argument_hint(name)).validated(value)
    except (ValidationError, PydanticSchemaGenerationError):
        return value  # the whole call is refused later, or was checked before
