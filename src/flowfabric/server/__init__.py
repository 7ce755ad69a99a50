"""The HTTP API: `server(app)` is an ASGI application with all operations of the engine.

Only this package and the programs of users import FastAPI. A route validates the request, calls the
client once, and renders the answer. Each route declares the scope that it needs, or None for no
scope. A route without this declaration raises an error at import.
"""

from __future__ import annotations

from flowfabric.server.application import server
from flowfabric.server.principals import Principal

__all__ = ["Principal", "server"]
