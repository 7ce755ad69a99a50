"""The stream of a handler: what it tells the outside world while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.states import StreamMode
from flowfabric.core.stream import FrameEncoding, OutgoingFrame, patch_problem
from flowfabric.handlers.loops import check_no_loop, not_awaited, running_loop
from flowfabric.tasks.frames import DEFAULT_KINDS, encode_frame

if TYPE_CHECKING:
    from flowfabric.handlers.durable_run import DurableRun
    from flowfabric.handlers.handler_run import HandlerRun

# A line of the log is cut to this many characters.
_MAX_LINE = 8_000


class HandlerStream:
    """The stream of an execution, for its handler: `ctx.stream`.

    Frames are stored about every 20 ms, in the order in which they were sent, and all of them
    before the attempt ends. Sending waits only while the database does not keep up. A handler that
    starts again sends only what comes after its last recorded step; readers are told to forget what
    is sent again.
    """

    __slots__ = ("_run",)

    def __init__(self, run: HandlerRun) -> None:
        self._run = run

    async def send(
        self, value: Any, /, *, kind: str | None = None, correlation_id: str | None = None
    ) -> None:
        """Send a frame: text, bytes, or a value that is stored as JSON.

        `kind` says what it is, for readers: "stdout", "delta", "progress", ... The default is
        "text", "blob" or "event".
        """
        await self._put("send", self._frame(value, kind, correlation_id))

    async def best_effort(
        self,
        value: Any,
        /,
        *,
        kind: str | None = None,
        correlation_id: str | None = None,
        ttl: timedelta | float = 10.0,
    ) -> None:
        """Send a frame that is not kept for long: only about twice what comes in `ttl` is stored.

        For what is soon outdated, such as the position of a cursor.
        """
        await self._put("best_effort", self._fleeting(value, kind, correlation_id, ttl))

    async def summary(self, patch: Mapping[str, Any], /) -> None:
        """Change the summary of the execution, a JSON document, by a merge patch (RFC 7396).

        A key with None is deleted; objects are merged; other values replace. To store a null, send
        the text "__ff_null__". `await run.summary()` reads the document.
        """
        await self._put("summary", _patch_frame(patch))

    def send_sync(
        self, value: Any, /, *, kind: str | None = None, correlation_id: str | None = None
    ) -> None:
        """`send` for a `def` handler or a plain function of a step."""
        self._put_sync("send", self._frame(value, kind, correlation_id))

    def best_effort_sync(
        self,
        value: Any,
        /,
        *,
        kind: str | None = None,
        correlation_id: str | None = None,
        ttl: timedelta | float = 10.0,
    ) -> None:
        """`best_effort` for a `def` handler."""
        self._put_sync("best_effort", self._fleeting(value, kind, correlation_id, ttl))

    def summary_sync(self, patch: Mapping[str, Any], /) -> None:
        """`summary` for a `def` handler."""
        self._put_sync("summary", _patch_frame(patch))

    @contextmanager
    def logs(
        self, logger: logging.Logger | str | None = None, *, level: int = logging.INFO
    ) -> Iterator[None]:
        """Send what the handler logs as frames of kind "log", inside a `with` block.

        Only lines of this handler, not of others in the process, and not of flowfabric itself. A
        line that finds the buffer full is dropped; a later frame says how many were.
        """
        if not isinstance(logger, logging.Logger):
            logger = logging.getLogger(logger)
        handler = _LogFrames(self._run, self._run.make_durable(), level)
        _LEVELS.lower(logger, level)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            _LEVELS.restore(logger)

    def _frame(self, value: Any, kind: str | None, correlation_id: str | None) -> OutgoingFrame:
        payload, encoding = encode_frame(value, self._run.spec.streams)
        return _checked(
            OutgoingFrame(
                payload,
                encoding,
                DEFAULT_KINDS[encoding] if kind is None else kind,
                correlation_id=correlation_id,
            )
        )

    def _fleeting(
        self,
        value: Any,
        kind: str | None,
        correlation_id: str | None,
        ttl: timedelta | float,
    ) -> OutgoingFrame:
        payload, encoding = encode_frame(value, self._run.spec.streams)
        if not isinstance(ttl, timedelta):
            if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= 86400:
                raise InvalidInput(field="ttl", problem="must be more than 0 and at most a day")
            ttl = timedelta(seconds=ttl)
        return _checked(
            OutgoingFrame(
                payload,
                encoding,
                DEFAULT_KINDS[encoding] if kind is None else kind,
                StreamMode.BEST_EFFORT,
                correlation_id=correlation_id,
                ttl=ttl,
            )
        )

    async def _put(self, call: str, frame: OutgoingFrame) -> None:
        loop = running_loop()
        if loop is None or not self._run.is_on_loop(loop):
            raise not_awaited(f"ctx.stream.{call}(...)", f"ctx.stream.{call}_sync")
        durable = self._run.make_durable()
        if not durable.frames.put_nowait(frame):
            await durable.frames.put(frame)

    def _put_sync(self, call: str, frame: OutgoingFrame) -> None:
        check_no_loop(f"ctx.stream.{call}(...)")
        durable = self._run.make_durable()
        if not durable.frames.put_nowait(frame):
            self._run.call_sync(lambda: durable.frames.put(frame))


def _checked(frame: OutgoingFrame) -> OutgoingFrame:
    frame.check()
    return frame


def _patch_frame(patch: Mapping[str, Any]) -> OutgoingFrame:
    if not isinstance(patch, Mapping):
        raise InvalidInput(field="patch", problem=f"must be a mapping, not {type(patch).__name__}")
    payload, _ = encode_frame(dict(patch))
    if (problem := patch_problem(payload)) is not None:
        raise InvalidInput(field="patch", problem=problem)
    return _checked(OutgoingFrame(payload, FrameEncoding.JSON, "summary", StreamMode.SUMMARY))


class _Levels:
    """The levels of loggers that handlers have lowered. The last one restores the level."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lowered: dict[logging.Logger, tuple[int, int]] = {}

    def lower(self, logger: logging.Logger, level: int) -> None:
        with self._lock:
            count, before = self._lowered.get(logger, (0, logger.level))
            self._lowered[logger] = (count + 1, before)
            if logger.getEffectiveLevel() > level:
                logger.setLevel(level)

    def restore(self, logger: logging.Logger) -> None:
        with self._lock:
            count, before = self._lowered.pop(logger)
            if count > 1:
                self._lowered[logger] = (count - 1, before)
            else:
                logger.setLevel(before)


_LEVELS = _Levels()


class _LogFrames(logging.Handler):
    """Sends log records of one handler as frames."""

    def __init__(self, run: HandlerRun, durable: DurableRun, level: int) -> None:
        super().__init__(level)
        self._run = run
        self._durable = durable
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._run.is_current or record.name.partition(".")[0] == "flowfabric":
            return
        try:
            line = self.format(record)[:_MAX_LINE]
            if self._dropped and self._send({"dropped": self._dropped}):
                self._dropped = 0
            told = {"level": record.levelname, "logger": record.name, "message": line}
            if not self._send(told):
                self._dropped += 1
        except (FlowFabricError, RuntimeError, asyncio.CancelledError):
            # The lease is lost or the handler is ending: its next call raises, not its log.
            self._dropped += 1

    def _send(self, value: Mapping[str, Any]) -> bool:
        payload = json.dumps(value).encode()[:65_536]
        frame = OutgoingFrame(payload, FrameEncoding.JSON, "log")
        return self._durable.frames.put_soon(frame)
