"""The client of the engine.

A file has the operations on one noun, such as lanes. A method calls one operation of the engine.
"""

from __future__ import annotations

from flowfabric.client.consumer import SubscribedEvent, Subscription
from flowfabric.client.facade import FlowFabric
from flowfabric.client.hooks import HookDeclaration
from flowfabric.client.schedules import Declaration, Declared, Fired
from flowfabric.client.submissions import Destination, Find, spread_payloads
from flowfabric.client.subscriptions import Subscriptions, subscription
from flowfabric.client.via import (
    find_again,
    signal_via,
    signal_via_sync,
    submit_flow_via,
    submit_flow_via_sync,
    submit_via,
    submit_via_sync,
)
from flowfabric.client.webhooks import Signed, WebhookLease
from flowfabric.db.outage import level_of

__all__ = [
    "Declaration",
    "Declared",
    "Destination",
    "Find",
    "Fired",
    "FlowFabric",
    "HookDeclaration",
    "Signed",
    "SubscribedEvent",
    "Subscription",
    "Subscriptions",
    "WebhookLease",
    "find_again",
    "level_of",
    "signal_via",
    "signal_via_sync",
    "spread_payloads",
    "submit_flow_via",
    "submit_flow_via_sync",
    "submit_via",
    "submit_via_sync",
    "subscription",
]
