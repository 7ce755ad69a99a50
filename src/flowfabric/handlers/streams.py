"""The stream of a handler: the frames that it sends to readers while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.states import StreamMode
from flowfabric.core.stream import FrameEncoding, OutgoingFrame, patch_problem
from flowfabric.handlers.durable_run import DurableRun, HandlerPaused
from flowfabric.handlers.loops import check_no_loop, not_awaited, running_loop
from flowfabric.tasks.frames import DEFAULT_KINDS, encode_frame

if TYPE_CHECKING:
    from flowfabric.handlers.handler_run import HandlerRun

# A line of the log, and the name of its logger, are cut to this many characters.
_MAX_LINE = 8_000
_MAX_NAME = 256


class HandlerStream:
    """The stream of an execution, for its handler: `ctx.stream`.

    Frames are stored about every 20 ms, in the order in which they were sent. All are stored before
    the attempt ends. Sending waits only while the database does not keep up.

    When the handler starts again, the frames after its last recorded step are sent again. A
    `Rewind` tells readers to forget what they have already read of these frames.
    """

    __slots__ = ("_run",)

    def __init__(self, run: HandlerRun) -> None:
        self._run = run

    async def send(
        self, value: Any, /, *, kind: str | None = None, correlation_id: str | None = None
    ) -> None:
        """Send a frame: text, bytes, or a value that is stored as JSON.

        `kind` tells readers what the frame is: "stdout", "delta", "progress", ... The default is
        "text" for text, "blob" for bytes and "event" for a value that is stored as JSON.
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
        """Send a frame that is kept only for a while.

        Use it for data that is soon outdated, such as where a mouse pointer is. The stream keeps
        only the newest of these frames: about as many as the handler sends in twice the time `ttl`
        (seconds, or a timedelta).
        """
        await self._put("best_effort", self._fleeting(value, kind, correlation_id, ttl))

    async def summary(self, patch: Mapping[str, Any], /) -> None:
        """Change the summary of the execution, a JSON document, by a merge patch (RFC 7396).

        A key with None is deleted, objects are merged, and any other value replaces the old one. To
        store a null, send the text "__ff_null__". `await run.summary()` reads the document.
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
        """Send the log lines of the handler as frames of kind "log", inside a `with` block.

        Only lines of this handler are sent, not lines of other handlers or of flowfabric itself. If
        the buffer is full, a line is dropped. The next line that is sent says how many.
        """
        if not isinstance(logger, logging.Logger):
            logger = logging.getLogger(logger)
        lines = _LogLines(self._run.make_durable(), level)
        _TAPS.add(logger, level)
        token = _lines.set((*_lines.get(), (logger, lines)))
        try:
            yield
        finally:
            _lines.reset(token)
            _TAPS.remove(logger)

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


class _LogLines:
    """Sends each log line of one handler as a frame."""

    def __init__(self, durable: DurableRun, level: int) -> None:
        self._durable = durable
        self._level = level
        self._dropped = 0

    def send(self, record: logging.LogRecord, line: str) -> None:
        if record.levelno < self._level:
            return
        try:
            if self._dropped and self._put({"dropped": self._dropped}):
                self._dropped = 0
            facts = {"level": record.levelname, "logger": record.name[:_MAX_NAME], "message": line}
            if not self._put(facts):
                self._dropped += 1
        except (FlowFabricError, RuntimeError, HandlerPaused, asyncio.CancelledError):
            # The lease is lost or the handler is ending. Logging must not raise; the handler's next
            # call raises.
            self._dropped += 1

    def _put(self, value: Mapping[str, Any]) -> bool:
        # Do not escape characters: otherwise a line of emoji could be too large for a frame.
        payload = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        frame = OutgoingFrame(payload, FrameEncoding.JSON, "log")
        return self._durable.frames.put_soon(frame)


# The loggers that the running handler has asked for, and the object that gets its lines.
_lines: ContextVar[tuple[tuple[logging.Logger, _LogLines], ...]] = ContextVar(
    "flowfabric_log_lines", default=()
)


class _Tap(logging.Handler):
    """Gives the log records of a logger to the running handler, if it has asked for them."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "flowfabric":
            return
        for logger, lines in _lines.get():
            if logger is self._logger:
                try:
                    line = self.format(record)[:_MAX_LINE]
                except Exception:
                    # The arguments do not fit the text. Like every handler of `logging`, report it
                    # and let the program go on.
                    self.handleError(record)
                    return
                lines.send(record, line)


class _Taps:
    """The loggers that handlers listen to, with their taps and their original levels.

    All handlers share one tap per logger. If each handler had its own tap, removing it while the
    logger is in use could make the logger skip another tap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[logging.Logger, tuple[int, int, _Tap]] = {}

    def add(self, logger: logging.Logger, level: int) -> None:
        with self._lock:
            count, before, tap = self._used.get(logger) or (0, logger.level, _Tap(logger))
            self._used[logger] = (count + 1, before, tap)
            if not count:
                logger.addHandler(tap)
            if logger.getEffectiveLevel() > level:
                logger.setLevel(level)

    def remove(self, logger: logging.Logger) -> None:
        with self._lock:
            count, before, tap = self._used.pop(logger)
            if count > 1:
                self._used[logger] = (count - 1, before, tap)
                return
            logger.setLevel(before)
            # Make a new list, because another thread may be iterating over the old one.
            logger.handlers = [one for one in logger.handlers if one is not tap]


_TAPS = _Taps()
