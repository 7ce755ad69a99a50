"""Reconcilers: periodic work that time makes due, such as expired leases and delays."""

from __future__ import annotations
