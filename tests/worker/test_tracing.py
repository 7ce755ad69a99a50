"""Traces: from whoever submits, over the database, to the run and its steps."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from flowfabric import (
    Context,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    PublicState,
    Retry,
    tracing,
)
from steps.stage import HOUR, skip, until
from worker.apps import working
from worker.waiting import eventually


class Spans:
    """The spans that have ended, and a tracer to make others."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.tracer = provider.get_tracer("test")
        self._exporter = exporter

    def __call__(self, prefix: str = ""):
        found = [s for s in self._exporter.get_finished_spans() if s.name.startswith(prefix)]
        return sorted(found, key=lambda span: span.start_time)

    def one(self, prefix: str):
        (span,) = self(prefix)
        return span


def provider_of(sampler=None) -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(**({"sampler": sampler} if sampler else {}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.fixture
def spans(monkeypatch):
    provider, exporter = provider_of()
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer(tracing.NAME))
    return Spans(provider, exporter)


async def stored(db) -> list[str | None]:
    rows = await db.fetch("select trace_context from ff.execution_body order by execution_id")
    return [row["trace_context"] for row in rows]


async def test_a_submission_and_its_run_are_one_trace(app, spans):
    @app.task(name="shop.pay", lane="money")
    async def pay(secret: str) -> str:
        with spans.tracer.start_as_current_span("inside"):
            return f"paid {secret}"

    async with working(app) as worker:
        with spans.tracer.start_as_current_span("request") as request:
            run = await pay.submit("4711")
        await run.result(timeout=60)

    send, process = spans.one("send"), spans.one("process")
    assert send.name == "send shop.pay"
    assert send.kind is SpanKind.PRODUCER
    assert send.parent.span_id == request.get_span_context().span_id
    assert dict(send.attributes) == {
        "messaging.system": "flowfabric",
        "messaging.operation.type": "send",
        "messaging.operation.name": "submit",
        "messaging.destination.name": "money",
        "messaging.message.id": run.id,
        "flowfabric.task.name": "shop.pay",
        "flowfabric.execution.id": run.id,
    }
    assert process.name == "process shop.pay"
    assert process.kind is SpanKind.CONSUMER
    assert process.parent.span_id == send.context.span_id
    assert process.parent.is_remote
    assert process.links == ()
    assert process.status.status_code is StatusCode.UNSET
    assert dict(process.attributes) == {
        "messaging.system": "flowfabric",
        "messaging.operation.type": "process",
        "messaging.operation.name": "execute",
        "messaging.destination.name": "money",
        "messaging.message.id": run.id,
        "flowfabric.task.name": "shop.pay",
        "flowfabric.execution.id": run.id,
        "flowfabric.attempt.number": 1,
        "flowfabric.lease.epoch": 1,
        "flowfabric.worker.id": worker.instance_id,
    }
    assert spans.one("inside").parent.span_id == process.context.span_id
    assert {span.context.trace_id for span in spans()} == {request.get_span_context().trace_id}
    assert all("4711" not in span.to_json() for span in spans())


async def test_a_trace_is_stored_as_w3c_writes_it(app, db, spans):
    @app.task
    async def work() -> None: ...

    await work.submit()

    send = spans.one("send")
    (context,) = await stored(db)
    (name, text), *others = json.loads(context).items()
    assert (name, others) == ("traceparent", [])
    version, trace_id, span_id, flags = text.split("-")
    assert version == "00"
    assert (trace_id, span_id) == (
        f"{send.context.trace_id:032x}",
        f"{send.context.span_id:016x}",
    )
    assert int(flags, 16) & 1, "sampled"


async def test_a_later_attempt_begins_a_trace_with_a_link(app, spans):
    @app.task(retry=Retry(max_retries=1, backoff=Fixed(timedelta(milliseconds=20))))
    async def shaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("to 4711")

    async with working(app):
        await (await shaky.submit()).result(timeout=60)

    send = spans.one("send")
    first, second = spans("process")
    assert first.parent.span_id == send.context.span_id
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"] == "ConnectionError"
    assert first.attributes["flowfabric.attempt.number"] == 1
    assert first.events == ()
    assert "4711" not in first.to_json()
    assert second.parent is None
    assert second.context.trace_id != send.context.trace_id
    assert [link.context.span_id for link in second.links] == [send.context.span_id]
    assert second.attributes["flowfabric.attempt.number"] == 2
    assert second.status.status_code is StatusCode.UNSET


async def test_a_run_that_comes_back_begins_a_trace_with_a_link(app, clock, spans):
    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep(HOUR)

    async with working(app):
        run = await nap.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        await run.result(timeout=60)

    send = spans.one("send")
    first, second = spans("process")
    assert first.parent.span_id == send.context.span_id
    assert first.status.status_code is StatusCode.UNSET
    assert second.parent is None
    assert [link.context.span_id for link in second.links] == [send.context.span_id]
    assert second.attributes["flowfabric.attempt.number"] == 1
    assert second.attributes["flowfabric.lease.epoch"] == 2


async def test_a_step_has_a_span_only_when_it_runs(app, clock, spans):
    @app.task
    async def work(ctx: Context) -> int:
        def inside() -> int:
            return trace.get_current_span().get_span_context().span_id

        found = await ctx.step("load", inside)
        await ctx.sleep(HOUR)
        return found

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        found = await run.result(timeout=60)

    first, second = spans("process")
    step = spans.one("step")
    assert step.name == "step load"
    assert step.kind is SpanKind.INTERNAL
    assert step.parent.span_id == first.context.span_id
    assert found == step.context.span_id
    assert [event.name for event in second.events] == ["step replayed"]
    assert dict(second.events[0].attributes) == {"flowfabric.step.name": "load"}


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_submits_continues_its_trace(app, spans, is_async):
    @app.task(name="child")
    async def child() -> None: ...

    if is_async:

        @app.task(name="parent")
        async def parent() -> None:
            await child.submit()
    else:

        @app.task(name="parent")
        def parent() -> None:
            child.submit_sync()

    async with working(app):
        await (await parent.submit()).result(timeout=60)
        await eventually(lambda: spans("process child"))

    assert spans.one("send child").parent.span_id == spans.one("process parent").context.span_id
    assert spans.one("process child").parent.span_id == spans.one("send child").context.span_id


async def test_a_child_continues_its_parents_trace(app, spans):
    @app.task(name="child")
    async def child() -> int:
        return 1

    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        return await (await ctx.submit(child)).result()

    async with working(app):
        assert await (await parent.submit()).result(timeout=60) == 1

    # The run that comes back submits it again, to no effect.
    send = spans("send child")[0]
    assert send.parent.span_id == spans("process parent")[0].context.span_id
    assert spans.one("process child").parent.span_id == send.context.span_id


async def test_one_run_does_not_end_up_in_the_trace_of_the_one_before(app, spans, monkeypatch):
    @app.task
    async def work() -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(tracing, "_tracer", None)
        runs = [await work.submit() for _ in range(4)]
    async with working(app, concurrency=1):
        for run in runs:
            await run.result(timeout=60)

    assert [span.parent for span in spans("process")] == [None] * 4
    assert [span.links for span in spans("process")] == [()] * 4
    assert len({span.context.trace_id for span in spans("process")}) == 4


@pytest.mark.parametrize(
    "context", ["nonsense", "[]", '{"traceparent": "00-0-0-00"}', "null", "[" * 4096]
)
async def test_a_trace_that_cannot_be_read_is_left_out(app, db, spans, context):
    @app.task
    async def work() -> None: ...

    run = await work.submit()
    await db.execute("update ff.execution_body set trace_context = $1", context)
    async with working(app):
        await run.result(timeout=60)
    assert spans.one("process").parent is None


async def test_many_at_once_are_one_span_and_share_its_trace(app, db, spans):
    @app.task
    async def work(n: int) -> None: ...

    await work.submit_many([(n,) for n in range(3)])
    await work.submit_many([])

    send = spans.one("send")
    assert send.attributes["messaging.batch.message_count"] == 3
    assert len(set(await stored(db))) == 1


async def test_a_submission_that_joins_a_transaction_takes_its_trace_along(app, db, spans):
    @app.task
    async def work() -> None: ...

    connection = await db.connect()
    async with connection.transaction():
        await work.submit(via=connection)

    (context,) = await stored(db)
    assert f"{spans.one('send').context.span_id:016x}" in context


async def test_a_duplicate_names_the_execution_there_was(app, spans):
    @app.task
    async def work() -> None: ...

    first = await work.using(key="k").submit()
    second = await work.using(key="k").submit()
    assert second.is_duplicate
    assert [span.attributes["messaging.message.id"] for span in spans("send")] == [first.id] * 2


async def test_a_submission_that_fails_is_an_error_of_its_span(app, spans, monkeypatch):
    @app.task
    async def work() -> None: ...

    client = await app.client()
    await work.submit()

    def fail(submission):
        raise InvalidInput(field="payload", problem="is 4711")

    monkeypatch.setattr(client.executions, "_store_alike", fail)
    with pytest.raises(InvalidInput):
        await work.submit()
    span = spans("send")[1]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "flowfabric.core.errors.InvalidInput"
    assert "4711" not in span.to_json()


async def test_a_payload_or_result_that_does_not_fit_is_an_error_of_the_run(app, spans):
    @app.task
    async def lie() -> int:
        return "x"  # type: ignore[return-value]

    async with working(app):
        with pytest.raises(ExecutionFailed):
            await (await lie.submit()).result(timeout=60)
    assert spans.one("process").status.status_code is StatusCode.ERROR


async def test_a_submitter_that_is_not_sampled_is_followed(app, db, monkeypatch):
    provider, exporter = provider_of(ALWAYS_OFF)
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer(tracing.NAME))
    seen = []

    @app.task
    async def work() -> None:
        seen.append(trace.get_current_span().get_span_context())

    async with working(app):
        await (await work.submit()).result(timeout=60)

    (context,) = await stored(db)
    assert json.loads(context)["traceparent"].endswith(("-00", "-02"))
    assert not seen[0].trace_flags.sampled
    assert exporter.get_finished_spans() == ()


async def test_without_a_provider_nothing_is_stored_and_nothing_is_current(app, db):
    assert tracing.look() is None
    seen = []

    @app.task
    async def work() -> None:
        seen.append(trace.get_current_span())

    async with working(app):
        await (await work.submit()).result(timeout=60)
    assert await stored(db) in ([None], [])
    assert seen == [trace.INVALID_SPAN]


def test_a_provider_that_is_set_is_found(monkeypatch):
    provider, _ = provider_of()
    monkeypatch.setattr(tracing, "_look_at", 0.0)
    assert tracing.tracer() is None
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_tracer", None)
    assert tracing.tracer() is None, "it is not looked for at every call"
    assert tracing.look() is not None
    assert tracing.tracer() is not None
