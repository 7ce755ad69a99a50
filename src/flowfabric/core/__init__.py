"""The vocabulary: ids, states, records and errors. Standard library only."""

from __future__ import annotations
