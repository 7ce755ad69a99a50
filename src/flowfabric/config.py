"""What can be configured, read once from the environment, validated, and passed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import DEFAULT_NAMESPACE, check_name

DATABASE_URL_VARIABLES = ("FLOWFABRIC_DATABASE_URL", "DATABASE_URL")
LOG_FORMATS = ("text", "json")

# Every variable of ours, also those that other layers read, so that a misspelt one is noticed.
VARIABLES = frozenset(
    {
        "FLOWFABRIC_DATABASE_URL",
        "FLOWFABRIC_TEST_DATABASE_URL",
        "FLOWFABRIC_NAMESPACE",
        "FLOWFABRIC_LEASE_TTL",
        "FLOWFABRIC_DRAIN_TIMEOUT",
        "FLOWFABRIC_LOG_FORMAT",
        "FLOWFABRIC_LOG_LEVEL",
        "FLOWFABRIC_PG_BINARIES",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One validated set of settings; `database_url` None means the project's own server."""

    database_url: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    lease_ttl: timedelta = timedelta(seconds=30)
    drain_timeout: timedelta = timedelta(seconds=25)
    log_format: str = "text"
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)
        for name in ("lease_ttl", "drain_timeout"):
            if not isinstance(getattr(self, name), timedelta):
                raise InvalidInput(field=name, problem="must be a timedelta")
        if not timedelta(seconds=1) <= self.lease_ttl <= timedelta(days=1):
            raise InvalidInput(field="lease_ttl", problem="must be between one second and one day")
        if self.drain_timeout < timedelta(0):
            raise InvalidInput(field="drain_timeout", problem="must not be negative")
        if self.log_format not in LOG_FORMATS:
            raise InvalidInput(field="log_format", problem=f"must be one of {LOG_FORMATS}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings that the environment asks for; everything else is the default."""
        env = os.environ if environment is None else environment
        given: dict[str, object] = {}
        for variable in DATABASE_URL_VARIABLES:
            if env.get(variable):
                given.setdefault("database_url", env[variable])
        for field, variable in (
            ("namespace", "FLOWFABRIC_NAMESPACE"),
            ("log_format", "FLOWFABRIC_LOG_FORMAT"),
            ("log_level", "FLOWFABRIC_LOG_LEVEL"),
        ):
            if env.get(variable):
                given[field] = env[variable]
        for field, variable in (
            ("lease_ttl", "FLOWFABRIC_LEASE_TTL"),
            ("drain_timeout", "FLOWFABRIC_DRAIN_TIMEOUT"),
        ):
            if env.get(variable):
                given[field] = _seconds(variable, env[variable])
        return cls(**given)  # type: ignore[arg-type]


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for every FLOWFABRIC_ variable that nothing reads."""
    env = os.environ if environment is None else environment
    sentences = []
    for name in sorted(env):
        if name.startswith("FLOWFABRIC_") and name not in VARIABLES:
            near = get_close_matches(name, VARIABLES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            sentences.append(f"{name} is not a variable of flowfabric{hint}")
    return sentences


def _seconds(variable: str, text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            field=variable, problem=f"must be a number of seconds, not {text!r}"
        ) from error
