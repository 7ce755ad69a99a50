"""Namespace grants: bind a login to one namespace. Only an operator is allowed to do this."""

from __future__ import annotations

from flowfabric.core.execution import check_name
from flowfabric.core.namespace import NamespaceGrant
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

_grant = reader(NamespaceGrant, functions.LIST_NAMESPACE_GRANTS)


class Namespaces:
    """Operations on namespace grants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, login: str, namespace: str, *, actor: str | None = None) -> bool:
        """Bind a login to one namespace, so that it can use no other namespace.

        An earlier binding of the login is replaced. Return False if the login was already bound to
        this namespace.
        """
        check_name("login", login)
        check_name("namespace", namespace)
        rows = await self._database.call(
            functions.GRANT_NAMESPACE, login=login, namespace=namespace, actor=actor
        )
        return bool(rows[0]["outcome"] == "granted")

    async def revoke(self, login: str) -> bool:
        """Remove the binding of a login. The login can then use every namespace.

        Return False if the login was not bound.
        """
        check_name("login", login)
        rows = await self._database.call(functions.REVOKE_NAMESPACE, login=login)
        return bool(rows[0]["outcome"] == "revoked")

    async def list(self) -> list[NamespaceGrant]:
        """List the bound logins with their namespaces, sorted by login."""
        rows = await self._database.call(functions.LIST_NAMESPACE_GRANTS)
        return [_grant(row) for row in rows]
