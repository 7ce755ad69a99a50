"""HTTP for every language: `server(app)` is an ASGI application with all operations of the engine.

Only this package and the programs of users import FastAPI. A route is validation, one call of the
client and one rendering. Each route declares the scope that it needs; without one it does not
start.
"""

from __future__ import annotations

from flowfabric.server.application import server
from flowfabric.server.principals import Principal

__all__ = ["Principal", "server"]
