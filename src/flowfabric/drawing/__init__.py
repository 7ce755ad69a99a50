"""Records as text: tables, lists of facts, trees, JSON, and pictures of flows.

This package only converts: records go in, text or plain data comes out. Commands print it, and HTTP
serves it.
"""

from __future__ import annotations
