"""OpenTelemetry: open spans, and pass the trace context from the submitter to the worker.

Spans are created only if the program has set a tracer provider; flowfabric sets none. A span never
contains a payload, a result or an error message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flowfabric.core.execution import Claimed, Submission

NAME = "flowfabric"

SEND, PROCESS, STEP = "send", "process", "step"
REPLAYED = "step replayed"

SYSTEM = "messaging.system"
OPERATION_TYPE = "messaging.operation.type"
OPERATION_NAME = "messaging.operation.name"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
TASK = "flowfabric.task.name"
EXECUTION = "flowfabric.execution.id"
ATTEMPT = "flowfabric.attempt.number"
EPOCH = "flowfabric.lease.epoch"
WORKER = "flowfabric.worker.id"
STEP_NAME = "flowfabric.step.name"
ERROR_TYPE = "error.type"

# A program sets its provider once, usually at its start. Until then, look for a provider at most
# this often: a look on every call would cost more than the call.
_LOOK_SECONDS = 1.0

_W3C = TraceContextTextMapPropagator()
_ROOT = Context()
_NO_SPAN: AbstractContextManager[None] = nullcontext()

_tracer: Tracer | None = None
_look_at = 0.0


def tracer() -> Tracer | None:
    """Return the tracer, or None if the program has set no OpenTelemetry tracer provider."""
    if _tracer is not None or monotonic() < _look_at:
        return _tracer
    return look()


def look() -> Tracer | None:
    """Check for a tracer provider now. Return its tracer, or None if there is none."""
    global _tracer, _look_at
    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        _tracer = provider.get_tracer(NAME)
    _look_at = monotonic() + _LOOK_SECONDS
    return _tracer


def send_span(
    submissions: Sequence[Submission], count: int | None = None
) -> AbstractContextManager[Span | None]:
    """Open a span around the submit of executions of one task. Its parent is the current span.

    The context of the new span is stored in the submissions. `count` is the number of executions;
    it is needed only if it differs from the number of submissions.
    """
    current = tracer()
    if current is None or not submissions:
        return _NO_SPAN
    return _send_span(current, submissions, len(submissions) if count is None else count)


def sent(span: Span | None, execution_id: str) -> None:
    """Add the id of the submitted execution to the span.

    If the idempotency key was used before, this is the id of the existing execution.
    """
    if span is not None:
        span.set_attributes({MESSAGE_ID: execution_id, EXECUTION: execution_id})


def process_span(claimed: Claimed, worker_id: str) -> AbstractContextManager[Span | None]:
    """Open a span around one run of a handler.

    The first run continues the submitter's trace. Every later run, for example a retry or a run
    after a sleep, starts a new trace, because a trace should not last for days. The new trace has a
    link to the submitter's trace.
    """
    current = tracer()
    return _NO_SPAN if current is None else _process_span(current, claimed, worker_id)


def step_span(name: str) -> AbstractContextManager[Span | None]:
    """Open a span around a step that runs."""
    current = tracer()
    return _NO_SPAN if current is None else _step_span(current, name)


def step_replayed(name: str) -> None:
    """Record that a step did not run because its value was in the journal."""
    if tracer() is not None:
        trace.get_current_span().add_event(REPLAYED, {STEP_NAME: name})


@contextmanager
def _send_span(tracer: Tracer, submissions: Sequence[Submission], count: int) -> Iterator[Span]:
    route = submissions[0].route
    attributes: dict[str, Any] = {
        SYSTEM: NAME,
        OPERATION_TYPE: "send",
        OPERATION_NAME: "submit",
        DESTINATION: route.lane,
        TASK: route.task,
    }
    if count != 1:
        attributes[BATCH_COUNT] = count
    span = tracer.start_span(f"{SEND} {route.task}", kind=SpanKind.PRODUCER, attributes=attributes)
    with _current(span):
        context = _stored(span)
        for submission in submissions:
            submission.trace_context = submission.trace_context or context
        yield span


@contextmanager
def _process_span(tracer: Tracer, claimed: Claimed, worker_id: str) -> Iterator[Span]:
    submitter = _submitter(claimed.trace_context)
    is_first = claimed.epoch == 1
    links = () if submitter is None or is_first else (Link(_span_context(submitter)),)
    span = tracer.start_span(
        f"{PROCESS} {claimed.task}",
        context=submitter if submitter is not None and is_first else _ROOT,
        kind=SpanKind.CONSUMER,
        attributes={
            SYSTEM: NAME,
            OPERATION_TYPE: "process",
            OPERATION_NAME: "execute",
            DESTINATION: claimed.lane,
            MESSAGE_ID: claimed.id,
            TASK: claimed.task,
            EXECUTION: claimed.id,
            ATTEMPT: claimed.attempt,
            EPOCH: claimed.epoch,
            WORKER: worker_id,
        },
        links=links,
    )
    with _current(span):
        yield span


@contextmanager
def _step_span(tracer: Tracer, name: str) -> Iterator[Span]:
    with _current(tracer.start_span(f"{STEP} {name}", attributes={STEP_NAME: name})) as span:
        yield span


@contextmanager
def _current(span: Span) -> Iterator[Span]:
    """Make a span current inside a `with` statement, then end the span.

    If an error is raised, record only its type.
    """
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield span
        except asyncio.CancelledError:
            # The run was released, put to sleep or stopped. That is not an error.
            raise
        except Exception as error:
            name = _type_name(error)
            span.set_attribute(ERROR_TYPE, name)
            span.set_status(Status(StatusCode.ERROR, name))
            raise


def _stored(span: Span) -> str | None:
    """Return the trace context of a span (W3C, as JSON), to store it with an execution."""
    if not span.get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, _ROOT))
    return json.dumps(carrier)


def _submitter(stored: str | None) -> Context | None:
    """Return the submitter's trace context, or None if it is missing or invalid."""
    if stored is None:
        return None
    try:
        carrier = json.loads(stored)
        context = _W3C.extract({str(name): str(value) for name, value in carrier.items()}, _ROOT)
    except (ValueError, AttributeError, RecursionError):
        return None
    return context if _span_context(context).is_valid else None


def _span_context(context: Context) -> trace.SpanContext:
    return trace.get_current_span(context).get_span_context()


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )
