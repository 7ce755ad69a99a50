"""Transactional steps. The writes of the step and its record commit in one transaction.

The transaction calls the function first and records the step last. Only the record locks the
execution, so no other session waits for user code. If the engine answers `recorded`, the
transaction commits. After every other answer it is rolled back, together with the function's
writes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.client.batching import busy_pauses
from flowfabric.client.caller_connections import (
    AsyncConnection,
    Operation,
    SyncConnection,
    cause_of,
    converting_errors,
    recognise,
    sqlstate_of,
)
from flowfabric.client.steps import Answer, read_json_answer
from flowfabric.client.submissions import Ask
from flowfabric.core.errors import FlowFabricError, InvalidInput, RetryExhausted, UnknownRoute
from flowfabric.core.step import Step, StepRecord
from flowfabric.db import functions
from flowfabric.handlers.step_calls import Done, StepCall
from flowfabric.handlers.steps import is_coroutine_function

if TYPE_CHECKING:
    from flowfabric.handlers.journal import Entry

_RECORD = Operation.of(functions.RECORD_STEP_JSON)
_FIELD = "connect"
# Serialisation failure and deadlock. The transaction changed nothing and may run again.
_CONFLICTS = {"40001", "40P01"}
# The server or the connection was lost. It is unknown whether the commit took effect.
_GONE = ("08", "57")
_MAX_TRIES = 5
_PAUSE_SECONDS = 0.05


class _RolledBack(Exception):
    """Raised inside the transaction of a step, to roll the transaction back."""


@dataclass(slots=True)
class _Attempt:
    """How far one transaction of a step has come, and what it has yielded."""

    # Whether the function was called.
    is_called: bool = False
    value: Any = None
    # The step to record; None until the function has returned.
    step: Step | None = None
    # The database's answer to the record; None before it arrives.
    answer: Answer | Exception | None = None
    error: Exception | None = None


class TransactionalStep(StepCall):
    """A step whose function writes to the database of its execution."""

    __slots__ = ("_entry", "_is_async", "_tries")

    async def do(self, entry: Entry) -> Done:
        self._begin(entry)
        done: Done = await self.call()
        return done

    def do_sync(self, entry: Entry) -> Done:
        self._begin(entry)
        done: Done = self.call_sync()
        return done

    def _begin(self, entry: Entry) -> None:
        self._entry = entry
        self._is_async = is_coroutine_function(self._function)
        self._tries = 0

    async def _call_function(self) -> Done:
        """Run transactions until one commits, or another run has recorded the step."""
        database = await self.durable.client.transactional.identity()
        while True:
            if self._is_async:
                attempt = await self._transact(database)
            else:
                work = functools.partial(self._transact_sync, database)
                attempt = await self._call_in_thread(work)
            if (found := await self._conclude(attempt)) is not None:
                return found

    def _call_function_sync(self) -> Done:
        if self._is_async:
            return self._run.call_sync(self._call_function)
        database = self._run.call_sync(self.durable.client.transactional.identity)
        while True:
            attempt = self._transact_sync(database)
            conclude = functools.partial(self._conclude, attempt)
            if (found := self._run.call_sync(conclude)) is not None:
                return found

    async def _transact(self, database: str) -> _Attempt:
        attempt = _Attempt()
        try:
            await self._transact_once(database, attempt)
        except Exception as error:
            if attempt.is_called or not _is_lost(error):
                raise
            attempt.error = error
        return attempt

    async def _transact_once(self, database: str, attempt: _Attempt) -> None:
        async with await self._open() as given:
            connection = self._recognise(given)
            assert isinstance(connection, AsyncConnection)
            try:
                async with connection.transaction():
                    await self._check(connection, database)
                    attempt.is_called = True
                    attempt.value = await self._function(given, *self._args, **self._kwargs)
                    attempt.step = self._step_of(attempt.value)
                    await connection.flush()
                    for pause in (*busy_pauses(), None):
                        if self.durable.frames.is_used:
                            await self.durable.frames.flush()
                        answer = await self._record(connection, attempt.step, database)
                        if pause is None or not isinstance(answer, RetryExhausted):
                            break
                        await asyncio.sleep(pause)
                    attempt.answer = answer
                    if isinstance(answer, Exception) or not answer.is_new:
                        raise _RolledBack
            except _RolledBack:
                pass
            except Exception as error:
                if attempt.step is None and sqlstate_of(cause_of(error)) not in _CONFLICTS:
                    raise
                attempt.error = error

    def _transact_sync(self, database: str) -> _Attempt:
        attempt = _Attempt()
        try:
            self._transact_once_sync(database, attempt)
        except Exception as error:
            if attempt.is_called or not _is_lost(error):
                raise
            attempt.error = error
        return attempt

    def _transact_once_sync(self, database: str, attempt: _Attempt) -> None:
        with self._open_sync() as given:
            connection = self._recognise(given)
            assert isinstance(connection, SyncConnection)
            try:
                with connection.transaction():
                    self._check_sync(connection, database)
                    attempt.is_called = True
                    attempt.value = self._function(given, *self._args, **self._kwargs)
                    attempt.step = self._step_of(attempt.value)
                    connection.flush()
                    for pause in (*busy_pauses(), None):
                        if self.durable.frames.is_used:
                            self.durable.flush_from_thread()
                        answer = self._record_sync(connection, attempt.step, database)
                        if pause is None or not isinstance(answer, RetryExhausted):
                            break
                        time.sleep(pause)
                    attempt.answer = answer
                    if isinstance(answer, Exception) or not answer.is_new:
                        raise _RolledBack
            except _RolledBack:
                pass
            except Exception as error:
                if attempt.step is None and sqlstate_of(cause_of(error)) not in _CONFLICTS:
                    raise
                attempt.error = error

    async def _conclude(self, attempt: _Attempt) -> Done | None:
        """Return the value or the record of the step; None if the transaction must run again."""
        durable, answer = self.durable, attempt.answer
        self._tries += 1
        if attempt.error is not None and not attempt.is_called:
            # The connection was lost before the function was called, so nothing has happened.
            await self._prepare_again(attempt.error)
            return None
        if answer is None or (isinstance(answer, Answer) and answer.is_new and attempt.error):
            assert attempt.error is not None
            return await self._conclude_error(attempt.error, is_ours=attempt.step is not None)
        if isinstance(answer, RetryExhausted):
            await self._prepare_again(answer)
            return None
        if isinstance(answer, UnknownRoute) and self._tries < _MAX_TRIES:
            await durable.client.steps.register_version(answer)
            return None
        if isinstance(answer, Exception):
            raise durable.refused(answer)
        durable.recorded(self._entry, answer.record)
        return attempt.value, None if answer.is_new else answer.record

    async def _conclude_error(self, error: Exception, *, is_ours: bool) -> Done | None:
        """Return the record of a step after `error`, or None if the transaction must run again.

        - After a serialisation failure or a deadlock, the transaction runs again.
        - If the connection was lost after the function had returned (`is_ours`), look for the
          record of the step in the journal. If there is none, the transaction runs again.
        - Every other error is raised.
        """
        state = sqlstate_of(cause_of(error))
        if state not in _CONFLICTS:
            is_unknown = state.startswith(_GONE) if state else not _is_our_own(error)
            if not (is_ours and is_unknown):
                raise error
            if (record := await self._find_record()) is not None:
                self.durable.recorded(self._entry, record)
                return None, record
        # If the first commit takes effect late, the next transaction finds its record.
        await self._prepare_again(error)
        return None

    async def _prepare_again(self, error: Exception) -> None:
        """Wait before the next transaction. Raise the error if no try is left."""
        if self._tries >= _MAX_TRIES:
            raise error
        await asyncio.sleep(_PAUSE_SECONDS)
        self.durable.check_running()

    async def _find_record(self) -> StepRecord | None:
        """Look for the record of the step in the journal, because the commit got no answer."""
        entry, durable = self._entry, self.durable
        for record in await durable.query(durable.client.steps.list(durable.id)):
            if (record.name, record.occurrence) == (entry.name, entry.occurrence):
                return record
        return None

    def _step_of(self, value: Any) -> Step:
        stored = self.codec.write(value, self._entry.name)
        return self.durable.step_of(self._entry, value=stored, encoding=self.codec.encoding)

    async def _record(
        self, connection: AsyncConnection, step: Step, database: str
    ) -> Answer | Exception:
        with converting_errors(_RECORD, _FIELD):
            text = await connection.call(_RECORD, self._bound(step, database))
        return read_json_answer(self._run.claimed, step, text)

    def _record_sync(
        self, connection: SyncConnection, step: Step, database: str
    ) -> Answer | Exception:
        with converting_errors(_RECORD, _FIELD):
            text = connection.call(_RECORD, self._bound(step, database))
        return read_json_answer(self._run.claimed, step, text)

    # Checks before the first transaction of a worker: can the connection record a step?

    async def _check(self, connection: AsyncConnection, database: str) -> None:
        if not self._run.worker.is_connect_checked:
            with converting_errors(_RECORD, _FIELD):
                answer = await connection.call(_RECORD, self._bound(None, None))
            self._check_database(answer, database)

    def _check_sync(self, connection: SyncConnection, database: str) -> None:
        if not self._run.worker.is_connect_checked:
            with converting_errors(_RECORD, _FIELD):
                answer = connection.call(_RECORD, self._bound(None, None))
            self._check_database(answer, database)

    def _bound(self, step: Step | None, database: str | None) -> list[Any]:
        steps = self.durable.client.steps
        ask = Ask(
            functions.RECORD_STEP_JSON, steps.step_arguments(self._run.claimed, step, database)
        )
        return ask.function.bind(ask.arguments)

    def _check_database(self, answer: str, database: str) -> None:
        if f'"{database}"' not in answer:
            raise InvalidInput(
                field=_FIELD,
                problem="gives a connection to a database other than the execution's: one "
                "transaction cannot write to both. Use ctx.step",
            )
        self._run.worker.is_connect_checked = True

    def _recognise(self, given: Any) -> SyncConnection | AsyncConnection:
        connection = recognise(given, _FIELD)
        if connection.is_async is not self._is_async:
            kind = "an async" if connection.is_async else "a synchronous"
            raise InvalidInput(
                field=_FIELD,
                problem=f"gives {kind} connection, but the function of step "
                f"{self._entry.name!r} is {'async def' if self._is_async else 'def'}",
            )
        if connection.is_in_transaction:
            raise InvalidInput(
                field=_FIELD,
                problem="gives a connection that is already in a transaction; the step must "
                "begin and commit its own",
            )
        return connection

    async def _open(self) -> AbstractAsyncContextManager[Any]:
        connect = self._run.worker.connect
        given: Any = self.durable.client.database.lend() if connect is None else connect()
        if inspect.iscoroutine(given):
            given = await given
        if not hasattr(given, "__aenter__"):
            raise self._not_a_block(given, "async with")
        block: AbstractAsyncContextManager[Any] = given
        return block

    def _open_sync(self) -> AbstractContextManager[Any]:
        connect = self._run.worker.connect
        if connect is None:
            raise InvalidInput(
                field=_FIELD,
                problem=f"the function of step {self._entry.name!r} is a `def` and needs a "
                "synchronous connection: App(connect=...), or make it an `async def`",
            )
        given = connect()
        if not hasattr(given, "__enter__"):
            if inspect.iscoroutine(given):
                given.close()
            raise self._not_a_block(given, "with")
        block: AbstractContextManager[Any] = given
        return block

    def _not_a_block(self, given: Any, word: str) -> InvalidInput:
        return InvalidInput(
            field=_FIELD,
            problem=f"must return a context manager for `{word}` that gives a connection or a "
            f"session to the {'async def' if self._is_async else 'def'} function of step "
            f"{self._entry.name!r}, not {type(given).__name__}",
        )


def _is_our_own(error: Exception) -> bool:
    """Tell whether flowfabric raised the error, not a database driver."""
    return isinstance(error, FlowFabricError)


def _is_lost(error: Exception) -> bool:
    """Tell whether the connection could not be opened or was lost."""
    state = sqlstate_of(cause_of(error))
    return state.startswith(_GONE) if state else not _is_our_own(error)
