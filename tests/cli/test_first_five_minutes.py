"""The path of a new user: an empty folder, a fresh environment, and nothing but the built wheel.

Prints the figures that docs/benchmarks.md quotes: `make prove ARGS="-k five_minutes -s"`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

ROOT = Path(__file__).parents[2]
# Packages at most, and seconds from `dev` to the first result on a busy machine.
MOST_PACKAGES = 32
MOST_SECONDS = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    """Empty, and one that the user of the server can enter; pytest's own is closed."""
    path = Path(tempfile.mkdtemp(prefix="ff-new-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def wheel(folder: Path) -> Path:
    built = folder / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(built), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.slow(short=0)
@pytest.mark.timeout(600)
def test_a_new_user_gets_a_result_with_four_commands(wheel, folder):
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=120)
    project = folder / "project"
    project.mkdir()
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLOWFABRIC_", "PG", "PYTHON", "VIRTUAL_ENV"))
        and name != "DATABASE_URL"
    }
    plain["PATH"] = f"{environment / 'bin'}:{plain['PATH']}"
    # Whatever this machine has beside the wheel is not used.
    plain["FLOWFABRIC_PG_BINARIES"] = "wheel"
    seconds: dict[str, float] = {}

    def run(*command: str, code: int = 0) -> str:
        before = monotonic()
        done = subprocess.run(
            command, cwd=project, env=plain, capture_output=True, text=True, timeout=300
        )
        seconds[" ".join(command[:2])] = monotonic() - before
        assert done.returncode == code, done.stderr
        return done.stdout

    run("pip", "install", "--quiet", f"{wheel}[quickstart]")
    packages = json.loads(run("pip", "list", "--format=json"))
    names = {package["name"] for package in packages} - {"pip", "setuptools"}
    where = run("python", "-c", "import flowfabric; print(flowfabric.__file__)")
    assert str(environment) in where
    assert "dev app:app" in run("flowfabric", "init")

    before = monotonic()
    log = project / "dev.log"
    with log.open("w") as out:
        dev = subprocess.Popen(
            ["flowfabric", "dev", "app:app"], cwd=project, env=plain, stdout=out, stderr=out
        )
    try:
        while "try " not in log.read_text():
            assert dev.poll() is None, log.read_text()
            assert monotonic() - before < MOST_SECONDS, log.read_text()
            time.sleep(0.05)
        seconds["flowfabric dev"] = monotonic() - before
        # What dev says to try is tried.
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("try ")]
        before = monotonic()
        tried = line.removeprefix("try").strip()
        done = subprocess.run(
            tried, shell=True, cwd=project, env=plain, capture_output=True, text=True, timeout=60
        )
        seconds["flowfabric submit"] = monotonic() - before
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == "Welcome, Ada! Your account is 1003."
        id = done.stderr.split()[0]
        assert json.loads(run("flowfabric", "result", id)) == json.loads(done.stdout)
        # The first attempt fails, as the file says; no step of it is done again.
        shown = json.loads(run("flowfabric", "show", id, "-o", "json"))
        assert shown["total_attempt_count"] == 2
        assert run("python", "app.py") == "Welcome, Ada! Your account is 1003.\n"
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0, log.read_text()
    finally:
        if dev.poll() is None:
            dev.kill()
            dev.wait()
    # The first attempt of each run fails on purpose.
    told = log.read_text()
    assert told.count("Traceback") == told.count("attempt failed, retry at ") == 2
    assert list((project / ".flowfabric").rglob("postmaster.pid")) == []
    assert len(names) <= MOST_PACKAGES, sorted(names)
    assert seconds["flowfabric dev"] + seconds["flowfabric submit"] < MOST_SECONDS
    print()
    print(f"{len(names)} packages, {wheel.stat().st_size / 1024:.0f} kB of them ours")
    for what, took in seconds.items():
        print(f"{took:6.1f} s  {what}")
