"""An embedded PostgreSQL server for development and tests.

It runs the PostgreSQL programs of the system or of a wheel, keeps its data in `.flowfabric/`, and
serves all processes of the project.
"""

from __future__ import annotations

from .binaries import find_psql
from .cluster import Server, prepare, start
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
from .folder import exists

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
    "exists",
    "find_psql",
    "prepare",
    "start",
]
