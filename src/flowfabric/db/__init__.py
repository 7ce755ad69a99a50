"""Access to Postgres. Only this package imports the driver."""

from __future__ import annotations
