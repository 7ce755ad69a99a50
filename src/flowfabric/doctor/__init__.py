"""The doctor: checks the installation and the invariants of the data."""

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
