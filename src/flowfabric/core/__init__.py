"""The vocabulary: ids, states, records and errors. Imports only the standard library."""

from __future__ import annotations
