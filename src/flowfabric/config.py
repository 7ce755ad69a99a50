"""Settings: they come from the environment and from a file of the project."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
# URL options of SQLAlchemy's drivers. The server does not know them.
_DRIVER_OPTIONS = {"async_fallback", "prepared_statement_cache_size"}

UNREADABLE_URL = "cannot be read; percent-encode / # ? in the password"
_HOST = re.compile(r"(?:\[[^]]*\]|[^:[\]]*)(?::(.*))?")
_LOGIN_IN_QUERY = re.compile(r"@[^&]*/")
_DIGITS = re.compile(r"[0-9]*")

# All our variables, including variables that other layers read, so that a misspelt one is reported.
VARIABLES = frozenset(
    {
        "FLOWFABRIC_DATABASE_URL",
        "FLOWFABRIC_TEST_DATABASE_URL",
        "FLOWFABRIC_URL",
        "FLOWFABRIC_TOKEN",
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
    """Validated settings. Without `database_url` and `url`, the embedded server is used.

    `embedded` tells whether the user chose the embedded server.
    """

    database_url: str | None = None
    embedded: bool = False
    namespace: str = DEFAULT_NAMESPACE
    lease_ttl: timedelta = timedelta(seconds=30)
    drain_timeout: timedelta = timedelta(seconds=25)
    code_version: str | None = None
    version_grace: timedelta = DEFAULT_GRACE
    # The URL at which people and other systems reach the server. Links to waitpoints begin with it.
    public_url: str | None = None
    # Whether the dashboard hides payloads, results and values from visitors who may only read.
    dashboard_hide_payloads: bool = False
    # The hosts that a worker may post events to, and the private networks in which these hosts may
    # be.
    webhook_hosts: str = ""
    webhook_networks: str = ""
    log_format: str = "text"
    log_level: str = "INFO"
    # A server of flowfabric to call instead of a database, and the token for it.
    url: str | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.database_url, str | None):
            raise InvalidInput(field="database_url", problem="must be text such as postgresql://…")
        if self.database_url is not None:
            object.__setattr__(self, "database_url", plain_url(self.database_url))
        if self.url is not None:
            check_server_url("url", self.url)
            if self.database_url is not None:
                raise InvalidInput(
                    field="url", problem="contradicts the database URL; give only one of them"
                )
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
        """Read the settings. A variable in `environment` overrides the file in `folder`. The file
        overrides the defaults.

        If no argument is given, read the environment of this process and the current folder.
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
        if env.get("FLOWFABRIC_URL"):
            if env.get("FLOWFABRIC_DATABASE_URL"):
                raise InvalidInput(
                    field="FLOWFABRIC_URL",
                    problem="contradicts FLOWFABRIC_DATABASE_URL; unset one of them",
                )
            # DATABASE_URL may be for another program.
            given.pop("database_url", None)
            given["url"] = env["FLOWFABRIC_URL"]
        elif env.get("FLOWFABRIC_DATABASE_URL"):
            given.pop("url", None)
        for name, variable in (
            ("namespace", "FLOWFABRIC_NAMESPACE"),
            ("token", "FLOWFABRIC_TOKEN"),
            ("code_version", "FLOWFABRIC_CODE_VERSION"),
            ("public_url", "FLOWFABRIC_PUBLIC_URL"),
            ("webhook_hosts", "FLOWFABRIC_WEBHOOK_HOSTS"),
            ("webhook_networks", "FLOWFABRIC_WEBHOOK_NETWORKS"),
            ("log_format", "FLOWFABRIC_LOG_FORMAT"),
            ("log_level", "FLOWFABRIC_LOG_LEVEL"),
        ):
            if env.get(variable):
                given[name] = env[variable]
        for name, variable in (
            ("lease_ttl", "FLOWFABRIC_LEASE_TTL"),
            ("drain_timeout", "FLOWFABRIC_DRAIN_TIMEOUT"),
            ("version_grace", "FLOWFABRIC_VERSION_GRACE"),
        ):
            if env.get(variable):
                given[name] = _seconds(variable, env[variable])
        return cls(**given)  # type: ignore[arg-type]


def check_server_url(field: str, url: str) -> str:
    """Return the URL of a server of flowfabric; refuse any other text."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        is_good = False
    if not is_good or parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(field=field, problem="must be an address such as https://host:9090")
    return url


def plain_url(url: str) -> str:
    """Return a URL without the driver of SQLAlchemy: `postgresql+asyncpg://…` becomes
    `postgresql://…`.

    Refuse an unclear URL: a part of its password might be taken for another part, and printed.
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
    """Return what is wrong with a URL, or None. The URL is given without its scheme.

    The answer quotes no part of the URL, because any part could be the password.
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
        # If the password contains a question mark, everything after it is read as the query, even
        # the host.
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
    """Read the settings in flowfabric.toml. If there is no such file, read [tool.flowfabric] of
    pyproject.toml.
    """
    name, table = "flowfabric.toml", _read_toml(folder / "flowfabric.toml")
    if table is None:
        name, project = "pyproject.toml", _read_toml(folder / "pyproject.toml")
        tools = (project or {}).get("tool")
        table = tools.get("flowfabric") if isinstance(tools, dict) else None
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise InvalidInput(field=f"{name}: tool.flowfabric", problem="must be a table")
    known = [one.name for one in fields(Settings) if one.name != "token"]
    given: dict[str, object] = {}
    for key, value in table.items():
        setting = f"{name}: {key}"
        if key == "token":
            raise InvalidInput(field=setting, problem="must not be in a file; set FLOWFABRIC_TOKEN")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known)}"
            raise InvalidInput(field=setting, problem=f"is not a setting; {hint}")
        if key in _TIMES:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInput(field=setting, problem="must be a number of seconds")
            given[key] = _seconds(setting, str(value))
        elif key == "embedded":
            if not isinstance(value, bool):
                raise InvalidInput(field=setting, problem="must be true or false")
            given[key] = value
        elif not isinstance(value, str):
            raise InvalidInput(field=setting, problem="must be a text")
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
