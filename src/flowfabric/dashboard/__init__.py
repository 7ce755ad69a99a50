"""The dashboard: pages for people, as HTML text. `flowfabric.server.dashboard` serves them.

A page is a function of records that the client has read. This package does not use HTTP and reads
no data itself.
"""

from __future__ import annotations

from flowfabric.dashboard.pages import STATIC, render

__all__ = ["STATIC", "render"]
