"""The doctor: is this installation sound, and does what must hold of its data hold?"""

from __future__ import annotations

from flowfabric.doctor.checks import Check, find_check, installation_checks, invariants
from flowfabric.doctor.examination import Progress, examine
from flowfabric.doctor.explanation import Explanation, explain
from flowfabric.doctor.report import Finding, Level, Report, Verdict

__all__ = [
    "Check",
    "Explanation",
    "Finding",
    "Level",
    "Progress",
    "Report",
    "Verdict",
    "examine",
    "explain",
    "find_check",
    "installation_checks",
    "invariants",
]
