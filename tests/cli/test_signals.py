"""The signals of a worker process, where they interrupt each other."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from flowfabric.cli.worker import Signals

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2)


class FakeWorker:
    def stop(self) -> None: ...

    def stop_at_once(self) -> None: ...


@pytest.mark.parametrize("line", range(1, 6))
async def test_a_second_signal_during_the_handling_of_the_first_is_the_second(line):
    signals = Signals(NUMBERS)
    signals.arm(FakeWorker())
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != sys.modules[Signals.__module__].__file__:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                signal.raise_signal(NUMBERS[1])
        return trace

    def receive_both() -> None:
        sys.settrace(trace)
        signal.raise_signal(NUMBERS[0])
        sys.settrace(before)
        if lines < line:  # the handling has fewer lines than this
            signal.raise_signal(NUMBERS[1])

    before = sys.gettrace()
    try:
        with pytest.raises(KeyboardInterrupt):
            receive_both()
        assert signals.code in {128 + number for number in NUMBERS}
        assert {signal.getsignal(number) for number in NUMBERS} == {signal.SIG_DFL}
    finally:
        sys.settrace(before)
        signals.disarm()
        await asyncio.sleep(0)
