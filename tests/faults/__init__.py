"""Faults: what processes, connections and servers do to the spine when they die."""

from __future__ import annotations
