"""What a worker logs about a failing attempt: for people, for machines, and for Sentry."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from flowfabric import Context, Fixed, Retry
from flowfabric.core.errors import ExecutionFailed
from flowfabric.telemetry import JsonFormatter, TextFormatter
from worker.apps import log_to, working

ONCE_MORE = Retry(max_retries=1, backoff=Fixed(timedelta(0)))
SECRET = "tok-5e3a91"


@pytest.fixture
def fails(app, request):
    """A task that fails twice: in a step, or in a thread."""

    def charge(token: str) -> None:
        raise ConnectionError("the bank does not answer")

    async def pay(ctx: Context, token: str) -> None:
        await ctx.step("charge", charge, token)

    def pay_plain(token: str) -> None:
        charge(token)

    kind = pay if request.param == "async" else pay_plain
    return app.task(name="shop.pay", retry=ONCE_MORE)(kind)


async def run(app: Any, task: Any) -> str:
    async with working(app):
        failing = await task.submit(token=SECRET)
        with pytest.raises(ExecutionFailed):
            await failing.result(timeout=60)
    return str(failing.id)


@pytest.mark.parametrize("fails", ["async", "plain"], indirect=True)
async def test_a_failing_attempt_is_logged_with_the_frames_of_the_user(app, fails):
    text, lines = io.StringIO(), io.StringIO()
    with log_to(TextFormatter(), text), log_to(JsonFormatter(), lines):
        id = await run(app, fails)
    check_text(text.getvalue(), id)
    check_lines([json.loads(line) for line in lines.getvalue().splitlines()], id)
    assert SECRET not in text.getvalue() + lines.getvalue()


def check_text(text: str, id: str) -> None:
    assert " warning attempt failed, retry at " in text
    last = text.partition(" error   ")[2].splitlines()
    bare = id.rpartition(":")[2]
    assert last[0].startswith(f"execution failed: shop.pay {bare}, attempt 2: ConnectionError: ")
    assert last[1] == "  Traceback (most recent call last):"
    assert last[2].startswith(f'    File "{__file__}", line ')
    trace = last[1 : last.index("  ConnectionError: the bank does not answer") + 2]
    assert all(__file__ in line for line in trace if line.startswith("    File "))
    assert re.fullmatch(r"  … \d+ frames of flowfabric left out", trace[-1])


def check_lines(lines: list[dict[str, Any]], id: str) -> None:
    failed = [line for line in lines if "exception" in line]
    assert [line["level"] for line in failed] == ["warning", "error"]
    for line in failed:
        assert (line["task"], line["execution_id"]) == ("shop.pay", id)
        assert line["exception"].startswith("Traceback (most recent call last):\n  File ")
        assert "ConnectionError: the bank does not answer\n… " in line["exception"]


class Kept(Transport):
    """A transport that keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__({})
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(dict(event))


@pytest.fixture
def sentry(request) -> Iterator[Kept]:
    kept = Kept()
    sentry_sdk.init(
        transport=kept,
        default_integrations=False,
        integrations=[LoggingIntegration()],
        include_local_variables=request.param,
    )
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.parametrize("fails", ["async"], indirect=True)
@pytest.mark.parametrize("sentry", [False, True], indirect=True)
async def test_sentry_gets_one_event_with_the_error_of_the_user(app, fails, sentry, request):
    id = await run(app, fails)
    (event,) = sentry.events
    assert (event["level"], event["logger"]) == ("error", "flowfabric.worker")
    assert (event["extra"]["execution_id"], event["extra"]["task"]) == (id, "shop.pay")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ConnectionError", "the bank does not answer")
    frames = error["stacktrace"]["frames"]
    assert [frames[0]["function"], frames[-1]["function"]] == ["pay", "charge"]
    # The variables of frames are Sentry's own option, and on unless it is told otherwise.
    with_variables = "vars" in frames[0]
    assert with_variables == request.node.callspec.params["sentry"]
    assert (SECRET in json.dumps(event, default=str)) == with_variables
