"""Converts records to text and plain data: tables, lists of facts, trees, JSON, pictures of flows.

Commands print the output, and HTTP serves it.
"""

from __future__ import annotations
