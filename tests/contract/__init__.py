"""The architecture, checked: what the documents promise about the code itself."""

from __future__ import annotations
