"""Settings: read once from the environment and the project's file, checked, and passed on."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from flowfabric.core.code_version import DEFAULT_GRACE, check_code_version
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import DEFAULT_NAMESPACE, check_name
from flowfabric.core.webhook import Allowed

DATABASE_URL_VARIABLES = ("FLOWFABRIC_DATABASE_URL", "DATABASE_URL")
LOG_FORMATS = ("text", "json")
_TIMES = ("lease_ttl", "drain_timeout", "version_grace")

_SCHEME = re.compile(r"postgres(?:ql)?(?:\+(\w+))?://")
# URL options for a driver of SQLAlchemy, which the server does not know.
_DRIVER_OPTIONS = {"async_fallback", "prepared_statement_cache_size"}

UNREADABLE_URL = "cannot be read; percent-encode / # ? in the password"
_HOST = re.compile(r"(?:\[[^]]*\]|[^:[\]]*)(?::(.*))?")
_LOGIN_IN_QUERY = re.compile(r"@[^&]*/")
_DIGITS = re.compile(r"[0-9]*")

# All our variables, including variables that other layers read: a misspelt one can be reported.
VARIABLES = frozenset(
    {
        "FLOWFABRIC_DATABASE_URL",
        "FLOWFABRIC_TEST_DATABASE_URL",
        "FLOWFABRIC_NAMESPACE",
        "FLOWFABRIC_LEASE_TTL",
        "FLOWFABRIC_DRAIN_TIMEOUT",
        "FLOWFABRIC_CODE_VERSION",
        "FLOWFABRIC_PUBLIC_URL",
        "FLOWFABRIC_WAITPOINT_SECRET",
        "FLOWFABRIC_WAITPOINT_SECRET_FILE",
        "FLOWFABRIC_VERSION_GRACE",
        "FLOWFABRIC_DASHBOARD_HIDE_PAYLOADS",
        "FLOWFABRIC_WEBHOOK_HOSTS",
        "FLOWFABRIC_WEBHOOK_NETWORKS",
        "FLOWFABRIC_LOG_FORMAT",
        "FLOWFABRIC_LOG_LEVEL",
        "FLOWFABRIC_PG_BINARIES",
        "FLOWFABRIC_EMBEDDED",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings. If `database_url` is None, the embedded server is used.

    `embedded` is True if the user chose the embedded server, and False if it is only the fallback.
    """

    database_url: str | None = None
    embedded: bool = False
    namespace: str = DEFAULT_NAMESPACE
    lease_ttl: timedelta = timedelta(seconds=30)
    drain_timeout: timedelta = timedelta(seconds=25)
    code_version: str | None = None
    version_grace: timedelta = DEFAULT_GRACE
    # Where people and other systems reach the server: the beginning of the links of waitpoints.
    public_url: str | None = None
    # Whether the dashboard hides payloads, results and values from visitors who may only read.
    dashboard_hide_payloads: bool = False
    # The hosts that a worker may post events to, and networks that are allowed though private.
    webhook_hosts: str = ""
    webhook_networks: str = ""
    log_format: str = "text"
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not isinstance(self.database_url, str | None):
            raise InvalidInput(field="database_url", problem="must be text such as postgresql://…")
        if self.database_url is not None:
            object.__setattr__(self, "database_url", plain_url(self.database_url))
        check_name("namespace", self.namespace)
        check_code_version("code_version", self.code_version)
        for name in _TIMES:
            if not isinstance(getattr(self, name), timedelta):
                raise InvalidInput(field=name, problem="must be a timedelta")
        if not timedelta(seconds=1) <= self.lease_ttl <= timedelta(days=1):
            raise InvalidInput(field="lease_ttl", problem="must be between one second and one day")
        if self.drain_timeout < timedelta(0):
            raise InvalidInput(field="drain_timeout", problem="must not be negative")
        if not timedelta(0) <= self.version_grace <= timedelta(days=7):
            raise InvalidInput(field="version_grace", problem="must be between zero and seven days")
        if self.public_url is not None and not re.match(r"https?://[^/\s]", str(self.public_url)):
            raise InvalidInput(field="public_url", problem="must begin with https:// or http://")
        Allowed.parse(self.webhook_hosts, self.webhook_networks)
        if self.log_format not in LOG_FORMATS:
            raise InvalidInput(field="log_format", problem=f"must be one of {LOG_FORMATS}")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Settings:
        """Read the settings. The environment wins over the file in the folder, which wins over the
        defaults.

        Without arguments, read the environment of this process and the current folder.
        """
        env = os.environ if environment is None else environment
        if folder is None and environment is None:
            folder = Path.cwd()
        given = {} if folder is None else _read_file(folder)
        for variable in reversed(DATABASE_URL_VARIABLES):
            if env.get(variable):
                given["database_url"] = env[variable]
        if env.get("FLOWFABRIC_EMBEDDED"):
            given["embedded"] = _truth("FLOWFABRIC_EMBEDDED", env["FLOWFABRIC_EMBEDDED"])
            if given["embedded"] and env.get("FLOWFABRIC_DATABASE_URL"):
                raise InvalidInput(
                    field="FLOWFABRIC_EMBEDDED",
                    problem="contradicts FLOWFABRIC_DATABASE_URL; unset one of them",
                )
        elif env.get("FLOWFABRIC_DATABASE_URL"):
            given.pop("embedded", None)
        if env.get("FLOWFABRIC_DASHBOARD_HIDE_PAYLOADS"):
            variable = "FLOWFABRIC_DASHBOARD_HIDE_PAYLOADS"
            given["dashboard_hide_payloads"] = _truth(variable, env[variable])
        if given.get("embedded"):
            # The user chose the embedded server; DATABASE_URL may be for another program.
            given.pop("database_url", None)
        for field, variable in (
            ("namespace", "FLOWFABRIC_NAMESPACE"),
            ("code_version", "FLOWFABRIC_CODE_VERSION"),
            ("public_url", "FLOWFABRIC_PUBLIC_URL"),
            ("webhook_hosts", "FLOWFABRIC_WEBHOOK_HOSTS"),
            ("webhook_networks", "FLOWFABRIC_WEBHOOK_NETWORKS"),
            ("log_format", "FLOWFABRIC_LOG_FORMAT"),
            ("log_level", "FLOWFABRIC_LOG_LEVEL"),
        ):
            if env.get(variable):
                given[field] = env[variable]
        for field, variable in (
            ("lease_ttl", "FLOWFABRIC_LEASE_TTL"),
            ("drain_timeout", "FLOWFABRIC_DRAIN_TIMEOUT"),
            ("version_grace", "FLOWFABRIC_VERSION_GRACE"),
        ):
            if env.get(variable):
                given[field] = _seconds(variable, env[variable])
        return cls(**given)  # type: ignore[arg-type]


def plain_url(url: str) -> str:
    """Return a URL without the driver of SQLAlchemy: `postgresql+asyncpg://…` becomes
    `postgresql://…`.

    Refuse a URL that cannot be parsed safely: a part of its password might be printed.
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    rest = url[scheme.end() :]
    if (problem := _problem_of(rest)) is not None:
        raise InvalidInput(field="database_url", problem=problem)
    if scheme[1]:
        before, mark, query = rest.partition("?")
        options = [
            f"sslmode={option.removeprefix('ssl=')}" if option.startswith("ssl=") else option
            for option in query.split("&")
            if option.partition("=")[0] not in _DRIVER_OPTIONS
        ]
        rest = before + mark * any(options) + "&".join(options)
    return f"postgresql://{rest}"


def _problem_of(rest: str) -> str | None:
    """Return the problem of a URL, which is given without its scheme, or None.

    The answer quotes no part of the URL: it could be the password.
    """
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:
        return UNREADABLE_URL
    hosts = [_HOST.fullmatch(host) for host in parts.netloc.rpartition("@")[2].split(",")]
    options = parts.query.split("&") if parts.query else []
    if (
        "#" in rest
        or "@" in parts.path
        # A question mark in the password makes the rest of the URL, including the host, the query.
        or (parts.netloc and _LOGIN_IN_QUERY.search(parts.query))
        or (not parts.path and "@" in parts.query)
        or any(option and "=" not in option for option in options)
    ):
        return UNREADABLE_URL
    ports = [host[1] or "" if host else "?" for host in hosts]
    for name, value in parse_qsl(parts.query):
        if name == "port":
            ports += value.split(",")
    if not all(map(_DIGITS.fullmatch, ports)):
        return UNREADABLE_URL
    if not all(len(port) <= 5 and 1 <= int(port) <= 65535 for port in ports if port):
        return "the port must be a number from 1 to 65535"
    return None


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for every FLOWFABRIC_ variable that flowfabric does not know."""
    env = os.environ if environment is None else environment
    sentences = []
    for name in sorted(env):
        if name.startswith("FLOWFABRIC_") and name not in VARIABLES:
            near = get_close_matches(name, VARIABLES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            sentences.append(f"{name} is not a variable of flowfabric{hint}")
    return sentences


def _read_file(folder: Path) -> dict[str, object]:
    """Read the settings in flowfabric.toml or, without that file, in [tool.flowfabric] of
    pyproject.toml."""
    name, table = "flowfabric.toml", _read_toml(folder / "flowfabric.toml")
    if table is None:
        name, project = "pyproject.toml", _read_toml(folder / "pyproject.toml")
        tools = (project or {}).get("tool")
        table = tools.get("flowfabric") if isinstance(tools, dict) else None
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise InvalidInput(field=f"{name}: tool.flowfabric", problem="must be a table")
    known = [field.name for field in fields(Settings)]
    given: dict[str, object] = {}
    for key, value in table.items():
        field = f"{name}: {key}"
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known)}"
            raise InvalidInput(field=field, problem=f"is not a setting; {hint}")
        if key in _TIMES:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInput(field=field, problem="must be a number of seconds")
            given[key] = _seconds(field, str(value))
        elif key == "embedded":
            if not isinstance(value, bool):
                raise InvalidInput(field=field, problem="must be true or false")
            given[key] = value
        elif not isinstance(value, str):
            raise InvalidInput(field=field, problem="must be a text")
        elif value:
            given[key] = value
    return given


def _read_toml(file: Path) -> dict[str, object] | None:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError as error:  # also a wrong encoding
        raise InvalidInput(field=file.name, problem=f"cannot be read as TOML: {error}") from error


def _truth(variable: str, text: str) -> bool:
    truths = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if (truth := truths.get(text.lower())) is None:
        raise InvalidInput(field=variable, problem=f"must be 1 or 0, not {text!r}")
    return truth


def _seconds(variable: str, text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            field=variable, problem=f"must be a number of seconds, not {text!r}"
        ) from error
