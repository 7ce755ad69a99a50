"""The HTTP API: `server(app)` is an ASGI application with all operations of the engine.

Only this package and the programs of users import FastAPI. An HTTP route validates the request,
calls the client once, and renders the answer. Each HTTP route declares the scope that its callers
need, or None for no scope. If this declaration is missing, the import raises an error.
"""

from __future__ import annotations

from flowfabric.server.application import server
from flowfabric.server.principals import Principal

__all__ = ["Principal", "server"]
