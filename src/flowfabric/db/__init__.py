"""Access to Postgres. No other package imports the driver."""

from __future__ import annotations
