"""The demo, as `make demo ARGS=--json` runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

import pytest

from support.isolation import chosen_binaries


@pytest.mark.slow
def test_the_demo_recovers_its_sleeper_and_ends_with_the_summary():
    # The user of the server must be able to enter the folder; pytest's own is closed.
    folder = Path(tempfile.mkdtemp(prefix="ff-demo-", dir="/tmp"))
    folder.chmod(0o755)
    started = monotonic()
    try:
        finished = subprocess.run(
            [sys.executable, "-m", "flowfabric", "demo", "--json"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "DATABASE_URL": "postgresql://never.used/x",
                **chosen_binaries(),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        seconds = monotonic() - started
        left = list((folder / ".flowfabric").rglob("postmaster.pid"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    assert finished.returncode == 0, finished.stderr
    # about ten on an idle machine
    assert seconds < 120
    summary = json.loads(finished.stdout.splitlines()[-1])
    assert summary["lost"] == 0
    assert summary["failed"] == 0
    assert summary["recovered"] >= 1
    assert summary["completed"] == summary["submitted"] >= 24
    assert "kill -9" in finished.stderr
    assert "/dashboard" in finished.stderr
    assert "reclaimed" in finished.stderr
    assert left == []
