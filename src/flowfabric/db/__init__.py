"""The seam to Postgres: the only package that knows the driver."""

from __future__ import annotations
