"""Server settings from the caller's options and from the variable PGOPTIONS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from .errors import SettingRefused

# These settings would move the server away from its clients, or open it to other users.
_RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)


def collect(options: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings for the start of a server. Explicit `options` win over PGOPTIONS."""
    settings = dict(_parse(os.environ.get("PGOPTIONS", ""))) | dict(options or {})
    for name in settings:
        if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise SettingRefused(f"{name!r} is not the name of a server setting.")
        if name.lower() in _RESERVED:
            raise SettingRefused(
                f"the setting {name} of the embedded server cannot be changed: it listens on a "
                "private Unix socket only. Remove it from the options or PGOPTIONS, or set "
                "FLOWFABRIC_DATABASE_URL to your own server."
            )
    return settings


def _parse(text: str) -> Iterator[tuple[str, str]]:
    words = iter(_words(text))
    for word in words:
        if word == "-c":
            pair = next(words, "")
        elif word.startswith(("-c", "--")):
            pair = word[2:]
        else:
            pair = ""
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingRefused(
                f"PGOPTIONS={text!r}: cannot read {word!r}. Write settings as -c name=value."
            )
        yield name.replace("-", "_"), value


def _words(text: str) -> list[str]:
    """Split a text at white space as PostgreSQL does. A backslash escapes white space."""
    words = re.findall(r"(?:\\.|[^\\\s])+", text, flags=re.DOTALL)
    return [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in words]
