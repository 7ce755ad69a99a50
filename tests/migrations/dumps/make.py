"""Makes the dump of a commit: see README.md. Needs git, and pg_dump of the oldest supported server
so that every server can read what it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flowfabric import embedded

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]

# Runs with the package of that commit: its schema, its client, its calls.
FILL = """
import asyncio, json, sys
from datetime import timedelta
from pathlib import Path
import flowfabric
from flowfabric.client import FlowFabric
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.policy import Fixed, Retry, policy_json
from flowfabric.core.states import FailureClass
from flowfabric.db import functions
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate

assert str(Path(flowfabric.__file__)).startswith(sys.argv[2]), flowfabric.__file__
url = sys.argv[1]
route = Route("default", "default", "old.task", frozenset())
needy = Route("default", "gpu", "old.render", frozenset({"gpu"}))

async def fill():
    async with open_connection(url) as connection:
        await migrate(connection)
    async with FlowFabric(url) as ff:
        async def submit(where=route, **options):
            submission = Submission(id=mint(), route=where, payload=b'[1]', **options)
            await ff.executions.submit(submission)
            return submission.id

        async def claim(ttl=timedelta(hours=20), where=route):
            (one,) = await ff.executions.claim(
                worker_id="old", worker_instance_id="old-1", tasks=[where.task], lease_ttl=ttl,
                capabilities=sorted(where.capabilities))
            return one

        retry = policy_json(retry=Retry(max_retries=3, backoff=Fixed(timedelta(milliseconds=1))))
        later = policy_json(retry=Retry(max_retries=3, backoff=Fixed(timedelta(hours=20))))
        broken = Failure(FailureClass.TRANSIENT, "broken", "old", b"trace")
        await submit(); await ff.executions.complete(await claim(), b'"done"')
        await submit(); await ff.executions.fail(await claim(), broken)
        await submit(policy=later); await ff.executions.fail(await claim(), broken)
        await submit(policy=retry); await ff.executions.fail(await claim(), broken)
        await asyncio.sleep(0.05); await ff.executions.promote_delayed()
        await ff.executions.complete(await claim(), b'"second"')
        await submit(); await ff.leases.release([await claim()])
        resumed = await claim(); await ff.leases.renew([resumed], timedelta(hours=20))
        await submit(); await claim(timedelta(seconds=1))
        await asyncio.sleep(1.1); await ff.leases.expire()
        await ff.executions.complete(await claim(), b'"reclaimed"')
        await submit(); await claim(timedelta(seconds=1))
        await asyncio.sleep(1.1); await ff.leases.expire()
        await submit(key="k", key_fingerprint=b"f", tags={"team.name": "x"}, creator="me")
        await submit(delay=timedelta(hours=20), deadline=timedelta(hours=30))
        await submit(needy, priority=7)
        await submit(needy, policy=retry)
        if hasattr(ff, "steps"):
            from flowfabric.core.states import StepKind
            from flowfabric.core.step import Step
            # higher than all others, so that the next claim takes it
            await submit(priority=9); held = await claim()
            await ff.steps.record(held, Step(name="charge", occurrence=0, position=0, value=b"1"))
            await ff.steps.record(held, Step(name="nap", occurrence=0, position=1,
                                  kind=StepKind.SLEEP, delay=timedelta(hours=20)))
            await submit(parent_id=held.id)
            await ff.executions.complete(held, b'"parent"')

asyncio.run(fill())
calls = [{"name": f.name, "arguments": list(f.arguments), "columns": list(f.columns),
          "text": f.text} for f in functions.FUNCTIONS]
calls += [{"name": r.name, "view": r.view, "text": r.text} for r in functions.READS]
Path(sys.argv[3]).write_text(json.dumps(calls, indent=1) + "\\n")
"""


def main(commit: str, name: str) -> None:
    programs = min(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parts[-2]))
    work = Path(tempfile.mkdtemp(prefix="ff-dump-"))
    work.chmod(0o755)
    try:
        if commit == ".":
            shutil.copytree(REPOSITORY / "src", work / "src")
        else:
            archive = ["git", "archive", commit, "src"]
            tree = subprocess.run(archive, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", work], input=tree.stdout, check=True)
        with embedded.start(work) as server:
            subprocess.run(
                [
                    *(sys.executable, "-c", FILL, server.url, str(work / "src")),
                    str(HERE / f"{name}.calls.json"),
                ],
                check=True,
                env={**os.environ, "PYTHONPATH": str(work / "src")},
            )
            dump = subprocess.run(
                [programs / "pg_dump", "--no-owner", "--schema=ff", f"--dbname={server.url}"],
                check=True,
                text=True,
                stdout=subprocess.PIPE,
            ).stdout
        # Recent releases of pg_dump put a random key around their output.
        kept = [line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unre"))]
        (HERE / f"{name}.sql").write_text("\n".join(kept) + "\n")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:3])
