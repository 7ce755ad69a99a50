"""Namespaces: tenants that share a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class NamespaceGrant:
    """A login that may act in one namespace and in no other."""

    login: str
    namespace: str
    granted_at: datetime
    granted_by: str
