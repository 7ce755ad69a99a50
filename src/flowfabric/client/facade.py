"""FlowFabric, the client of the engine.

Its operations are grouped by attributes, as in `client.lanes.pause(...)`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from flowfabric.client.approvals import Approvals
from flowfabric.client.budgets import Budgets
from flowfabric.client.events import Events
from flowfabric.client.executions import Executions
from flowfabric.client.flows import Flows
from flowfabric.client.grants import Grants
from flowfabric.client.hooks import Hooks
from flowfabric.client.lanes import Lanes
from flowfabric.client.leases import Leases
from flowfabric.client.minutes import Minutes
from flowfabric.client.namespaces import Namespaces
from flowfabric.client.partitions import Partitions
from flowfabric.client.quotas import Quotas
from flowfabric.client.remote import RemoteResults, RemoteStreams
from flowfabric.client.results import Results
from flowfabric.client.retention import Retention
from flowfabric.client.schedules import Schedules
from flowfabric.client.signals import Signals
from flowfabric.client.steps import Steps
from flowfabric.client.streams import Streams
from flowfabric.client.subscriptions import Subscriptions
from flowfabric.client.tasks import Tasks
from flowfabric.client.tokens import Tokens
from flowfabric.client.transactional import Transactional
from flowfabric.client.webhooks import Webhooks
from flowfabric.client.workers import Workers
from flowfabric.core.errors import Forbidden
from flowfabric.core.execution import DEFAULT_NAMESPACE
from flowfabric.db.session import Database


class FlowFabric:
    """A client of the engine on one database. Use it only on the event loop that opened it.

    `namespace` limits every call to one namespace; None means all namespaces. If the client calls a
    server instead of a database, None means the namespace of the token.
    """

    def __init__(
        self,
        url: str | Database,
        *,
        namespace: str | None = DEFAULT_NAMESPACE,
        pool_size: int = 4,
    ) -> None:
        self.database = Database(url, size=pool_size) if isinstance(url, str) else url
        self._owns_database = isinstance(url, str) or url.is_remote
        self._others: dict[str | None, FlowFabric] = {}
        self._bind(namespace)

    def _bind(self, namespace: str | None) -> None:
        self.namespace = namespace
        self.lanes = Lanes(self.database, namespace)
        self.leases = Leases(self.database, namespace)
        self.executions = Executions(self.database, self.lanes, namespace)
        self.transactional = Transactional(self.database, self.lanes)
        self.flows = Flows(self.database, self.transactional, namespace)
        self.grants = Grants(self.database, namespace)
        self.events = Events(self.database, namespace)
        self.subscriptions = Subscriptions(self.database, self.events, namespace)
        self.webhooks = Webhooks(self.database, self.events, self.subscriptions, namespace)
        is_remote = self.database.is_remote
        self.results = (RemoteResults if is_remote else Results)(self.database, self.executions)
        self.streams = (RemoteStreams if is_remote else Streams)(
            self.database, self.results, namespace
        )
        self.workers = Workers(self.database, namespace)
        self.retention = Retention(self.database)
        self.minutes = Minutes(self.database, namespace)
        self.namespaces = Namespaces(self.database)
        self.partitions = Partitions(self.database)
        self.schedules = Schedules(self.database, self.lanes, namespace)
        self.quotas = Quotas(self.database, namespace)
        self.budgets = Budgets(self.database, namespace)
        self.hooks = Hooks(self.database, self.lanes)
        self.tasks = Tasks(self.database, namespace)
        self.steps = Steps(self.database, self.lanes, namespace)
        self.signals = Signals(self.database, self.steps, namespace)
        self.approvals = Approvals(self.database, namespace)
        self.tokens = Tokens(self.database, namespace)

    def within(self, namespace: str | None) -> FlowFabric:
        """Return a client for another namespace.

        The other client uses the connections of this client, and is closed when this client is
        closed.
        """
        if namespace == self.namespace or (namespace is None and self.database.is_remote):
            return self
        if self.database.is_remote:
            raise Forbidden(f"The token is for the namespace {self.namespace}, not {namespace}.")
        if namespace not in self._others:
            self._others[namespace] = FlowFabric(self.database, namespace=namespace)
        return self._others[namespace]

    async def open(self) -> Self:
        await self.database.open()
        own = self.database.namespace
        if own is not None and self.namespace is None:
            self._bind(own)
        elif own not in (None, self.namespace):
            await self.database.close()
            raise Forbidden(
                f"The token is for the namespace {own}, not {self.namespace}. Name its namespace, "
                "or use another token.",
                namespace=self.namespace,
            )
        return self

    async def close(self) -> None:
        """Send everything that is queued, stop waiting for results, and close the connections."""
        for other in tuple(self._others.values()):
            await other.close()
        await self.streams.close()
        await self.subscriptions.close()
        await self.steps.close()
        await self.signals.close()
        await self.flows.close()
        await self.budgets.close()
        await self.executions.close()
        await self.results.close()
        if self._owns_database:
            await self.database.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
