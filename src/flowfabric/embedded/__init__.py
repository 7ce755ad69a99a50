"""A PostgreSQL server of the project's own, for development and tests: started from the system's
programs or from a wheel, kept in `.flowfabric/`, and shared by the processes of the project.
"""

from __future__ import annotations

from .cluster import Server, start
from .errors import (
    AccountNotFound,
    BinariesNotFound,
    DiskFull,
    EmbeddedError,
    FolderNotReachable,
    FolderNotTrusted,
    FolderNotWritable,
    MajorUnavailable,
    SettingRefused,
    StartFailed,
)

__all__ = [
    "AccountNotFound",
    "BinariesNotFound",
    "DiskFull",
    "EmbeddedError",
    "FolderNotReachable",
    "FolderNotTrusted",
    "FolderNotWritable",
    "MajorUnavailable",
    "Server",
    "SettingRefused",
    "StartFailed",
    "start",
]
