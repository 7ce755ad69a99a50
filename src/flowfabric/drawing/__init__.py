"""Converts records to text and to plain data, such as tables, trees, JSON and pictures of flows.

Commands print the output, and HTTP serves it.
"""

from __future__ import annotations
