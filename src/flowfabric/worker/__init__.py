"""The worker: claims executions, runs their handlers, renews leases and records outcomes."""

from __future__ import annotations

from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.hints import Hints
from flowfabric.worker.journal_check import Fit, JournalCheck, JournalVerdict
from flowfabric.worker.lifespan import Lifespan
from flowfabric.worker.loop_watch import LoopWatch
from flowfabric.worker.registration import Registrations
from flowfabric.worker.worker import Worker

__all__ = [
    "Fit",
    "Heartbeat",
    "Hints",
    "JournalCheck",
    "JournalVerdict",
    "Lifespan",
    "LoopWatch",
    "Registrations",
    "Worker",
]
