"""Webhooks: their records, and the rules about which URLs and addresses a worker calls.

A webhook makes a worker call a URL that somebody stored in the database. If there were no rules, a
stored URL could reach the private network of the worker. So a worker calls only hosts that its
settings list. By default, no host is listed. It calls a listed host only by https, and only if each
address of the host is public or in a network that the settings list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from flowfabric.core.errors import InvalidInput

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

DEFAULT_PORT = 443
MAX_URL = 2048
# A DNS name. The last label must contain a letter and must not look like a number: resolvers
# read texts such as 127.1, 0x7f.1 and 2130706433 as addresses.
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_VISIBLE = re.compile(r"[\x21-\x7e]+")

# Addresses at which clouds hand out credentials to their machines. A worker never calls them, even
# if the settings list them.
_NEVER: tuple[Network, ...] = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("fd00:ec2::/32"),
    ip_network("100.100.100.200/32"),
)
# IPv6 addresses that contain an IPv4 address, which may be a private one.
_CARRIERS: tuple[Network, ...] = (
    ip_network("::/96"),
    ip_network("::ffff:0:0/96"),
    ip_network("::ffff:0:0:0/96"),
    ip_network("64:ff9b::/96"),
    ip_network("64:ff9b:1::/48"),
    ip_network("2001::/32"),
    ip_network("2002::/16"),
)
# Public IPv6 addresses begin with the bits 001. The networks in `_SPECIAL` are never public;
# Python versions disagree about some of them.
_UNICAST = ip_network("2000::/3")
_SPECIAL: tuple[Network, ...] = (
    ip_network("192.0.0.0/24"),
    ip_network("192.88.99.0/24"),
    ip_network("2001::/23"),
    ip_network("3fff::/20"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a checked URL: where to connect, and what to ask for."""

    host: str
    port: int
    # The path with the query.
    path: str
    address: Address | None = None
    """The address that the URL itself names, if it names one."""

    @property
    def host_and_port(self) -> str:
        """The host and port, in the form `host:port` or `[address]:port`."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{shown}:{self.port}"


def parse_webhook_url(url: str) -> Target:
    """Return the parts of a URL; raise InvalidInput if its form is not allowed for webhooks."""

    def wrong(problem: str) -> InvalidInput:
        return InvalidInput(field="url", problem=problem)

    if not isinstance(url, str) or not _VISIBLE.fullmatch(url) or len(url) > MAX_URL:
        raise wrong(f"must be at most {MAX_URL} visible ASCII characters")
    if "\\" in url:
        raise wrong("must not contain a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise wrong("cannot be read") from error
    if parts.scheme != "https":
        raise wrong("must begin with https://")
    if "@" in parts.netloc:
        raise wrong("must not contain a user or a password")
    if parts.fragment or "#" in url:
        raise wrong("must not contain a fragment (#)")
    if parts.netloc.endswith(":") or port == 0:
        raise wrong("must contain a port from 1 to 65535, or none")
    host = (parts.hostname or "").lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.netloc.startswith("["):
        try:
            if "%" in host:
                raise ValueError("an address with a zone is valid on one machine only")
            address: Address = IPv6Address(host)
        except ValueError as error:
            raise wrong("must contain an IPv6 address without a zone in the brackets") from error
        return Target(address.compressed, port or DEFAULT_PORT, path, address)
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise wrong("must contain the name of a host: letters, digits, dashes and dots")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            # Accept only the usual form: IPv4Address refuses leading zeros, hexadecimal and short
            # forms.
            address = IPv4Address(host)
        except ValueError as error:
            raise wrong("must contain an address in the form 203.0.113.7, or a name") from error
        return Target(host, port or DEFAULT_PORT, path, address)
    return Target(host, port or DEFAULT_PORT, path)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The hosts that a worker may call.

    The address of a host must be public, or in one of `networks`.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, hosts: str, networks: str) -> Allowed:
        """Parse two comma-separated lists.

        For example, hosts are `*.example.org, example.net:8443`, and networks are `10.1.0.0/16`.
        """
        found = []
        for entry in _entries(hosts):
            host, _, port = entry.lower().partition(":")
            name = host.removeprefix("*.")
            if (
                not _NAME.fullmatch(name)
                or (port and not (port.isascii() and port.isdecimal()))
                or (host.startswith("*.") and "." not in name)
            ):
                raise InvalidInput(
                    field="webhook_hosts",
                    problem=f"{entry!r} must look like hooks.example.com, *.example.com or "
                    "hooks.example.com:8443",
                )
            found.append(f"{host}:{port or DEFAULT_PORT}")
        try:
            nets = tuple(ip_network(entry) for entry in _entries(networks))
        except ValueError as error:
            raise InvalidInput(
                field="webhook_networks", problem=f"must look like 10.1.0.0/16: {error}"
            ) from error
        return cls(tuple(found), nets)

    def allows_host(self, host_and_port: str) -> bool:
        """Return whether a host with its port is in `hosts`. `*.` stands for all subdomains."""
        host, _, port = host_and_port.rpartition(":")
        return any(
            (name == host or (name.startswith("*.") and host.endswith(name[1:])))
            and listed_port == port
            for name, _, listed_port in (entry.rpartition(":") for entry in self.hosts)
        )

    def check(self, target: Target, addresses: Sequence[Address]) -> Address:
        """Return the address to connect to.

        Raise Blocked if the rules forbid the host or any one of its addresses.
        """
        if not self.allows_host(target.host_and_port):
            raise Blocked(
                f"{target.host_and_port} is not in FLOWFABRIC_WEBHOOK_HOSTS of this worker"
            )
        if not addresses:
            raise Blocked(f"{target.host} has no address")
        for address in addresses:
            if not self._allows(address):
                raise Blocked(f"{target.host} has the address {address}, which may not be called")
        return addresses[0]

    def _allows(self, address: Address) -> bool:
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return False
        if any(address in network for network in _NEVER if network.version == address.version):
            return False
        if any(address in network for network in _CARRIERS if network.version == address.version):
            return False
        if any(address in net for net in self.networks if net.version == address.version):
            return True
        if address.version == 6 and address not in _UNICAST:
            return False
        if any(address in network for network in _SPECIAL if network.version == address.version):
            return False
        return address.is_global and not address.is_multicast and not address.is_reserved


class Blocked(Exception):
    """The allow-list or the rules for addresses do not allow a call to this URL."""


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def parse_address(text: str) -> Address:
    """Parse an address that a resolver returned."""
    return ip_address(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookInfo:
    """A webhook: its URL, the events that it posts, and the last answer of its receiver.

    `behind_at`, `waiting` and `is_expired` are as in `SubscriptionInfo`.
    """

    namespace: str
    name: str
    url: str
    host: str
    kinds: Sequence[str] | None
    tasks: Sequence[str] | None
    has_detail: bool
    holder_name: str | None
    acked_count: int
    acked_at: datetime | None
    failure_count: int
    retry_at: datetime | None
    answer: str | None
    answered_at: datetime | None
    disabled_at: datetime | None
    created_at: datetime
    changed_by: str | None
    behind_at: datetime | None = None
    waiting: int = 0
    is_expired: bool = False
    # enabled, failing or disabled
    state: str = "enabled"

    def judged(self) -> WebhookInfo:
        """Return this record with the state that follows from its other fields."""
        if self.disabled_at is not None:
            return replace(self, state="disabled")
        return replace(self, state="failing" if self.failure_count else "enabled")
