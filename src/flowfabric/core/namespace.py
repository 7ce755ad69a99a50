"""Namespaces: tenants that share a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class NamespaceGrant:
    """A login that is bound to one namespace and can use no other."""

    login: str
    namespace: str
    granted_at: datetime
    granted_by: str
