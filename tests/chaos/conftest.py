"""The durable server of the tests of faults."""

from __future__ import annotations

from faults.conftest import durable, durable_process, killable, killable_process

__all__ = ["durable", "durable_process", "killable", "killable_process"]
