"""Signals: deliver them, ask for them under a lease, and suspend an execution until they come."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, TypeAlias, TypedDict
from uuid import UUID

from flowfabric.client.addresses import Scoped, address, lease_address, lease_addresses, location
from flowfabric.client.batching import BUSY, Batcher, Busy, busy_pauses
from flowfabric.client.executions import SETTLE_PATIENCE_SECONDS
from flowfabric.client.operations import apply_once
from flowfabric.client.outcomes import Pass, refusal
from flowfabric.client.partitions import ask_each, ask_reachable, share_of
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.client.steps import Steps
from flowfabric.core.attempts import attempt_number
from flowfabric.core.errors import FlowFabricError, InvalidInput, RetryExhausted, UnknownRoute
from flowfabric.core.execution import Claimed, OperationAnswer, check_words
from flowfabric.core.ids import AnyId, ExecutionId, uuid7
from flowfabric.core.partition import Found
from flowfabric.core.signal import (
    AskedWaitpoint,
    Delivered,
    FeedSignal,
    HmacKey,
    PendingWaitpoint,
    Rotation,
    Signal,
    SignalRecord,
    Suspended,
    Wait,
    WaitAnswer,
    WaitpointState,
    token_address,
)
from flowfabric.core.states import EventKind
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

Target: TypeAlias = tuple[ExecutionId, Signal]
Asked: TypeAlias = tuple[Claimed, Wait]
Records: TypeAlias = list[SignalRecord]

# The number of signals, or of suspended executions, in one page.
PAGE = 1000
_MAX_TYPES = 10_000

_waitpoint = reader(PendingWaitpoint, functions.LIST_PENDING_WAITPOINTS)
_key = reader(HmacKey, functions.LIST_HMAC_KEYS)
_rotation = reader(Rotation, functions.ROTATE_HMAC_KEY)
_listed = reader(SignalRecord, functions.LIST_SIGNALS, given="id", unread="signal_id")
_observed = reader(
    SignalRecord,
    functions.OBSERVE_SIGNALS,
    given="id",
    unread="signal_id",
    default="noticed_at effect taken_at wait_name wait_occurrence waitpoint_id",
)
_from_feed = reader(
    FeedSignal,
    functions.READ_SIGNALS,
    given="id execution_id",
    unread="signal_id execution_id next_cursor",
)


class JsonSignalArguments(TypedDict):
    """The arguments of ff.deliver_signal_json."""

    partition_key: int
    namespace: str | None
    signal: str
    database: str | None


class Signals(Scoped):
    """Operations on signals and suspensions."""

    def __init__(self, database: Database, steps: Steps, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._steps = steps
        self._sends: dict[tuple[int, bool], Batcher[Target, Delivered]] = {}
        self._asks: dict[int, Batcher[Asked, WaitAnswer]] = {}
        self._noticing: asyncio.Task[None] | None = None
        self._stored: set[int | None] = set()
        # Caches of signal types: the id by JSON Schema, the JSON Schema by id, and the id of the
        # last type by signal name. Most senders send the same few signals.
        self._schema_ids: dict[str, int] = {}
        self._types: dict[int, Any] = {}
        self._last_types: dict[str, int] = {}

    async def close(self) -> None:
        for sends in tuple(self._sends.values()):
            await sends.close()
        for asks in tuple(self._asks.values()):
            await asks.close()
        if self._noticing is not None:
            await asyncio.wait([self._noticing])

    async def deliver(self, id: AnyId, signal: Signal) -> Delivered:
        """Send one signal to an execution. Concurrent calls share transactions."""
        signal.check()
        id = await self._execution(id)
        partition, _ = location(id)
        # A signal with a key may be busy while another transaction with that key is open.
        group = (partition, signal.key is not None)
        batcher = self._sends.get(group)
        if batcher is None:
            batcher = self._sends[group] = Batcher(self._send, self._send_alone)
        self._guess_type(signal)
        return await batcher.put((id, signal))

    async def register_types(self, documents: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Register the types of signal values. Return an id for each type.

        A type is given as a JSON Schema.
        """
        texts = [json.dumps(one, sort_keys=True) for one in documents]
        new = [text for text in dict.fromkeys(texts) if text not in self._schema_ids]
        if new:
            rows = await self._database.call(functions.REGISTER_SIGNAL_SCHEMAS, documents=new)
            for row in rows:
                self._schema_ids[new[row["item"] - 1]] = row["schema_id"]
        return [self._schema_ids[text] for text in texts]

    def check_type(self, signal: Signal, schema_id: int, document: Any) -> None:
        """Check the value of a signal against the type that the engine expects, and remember the
        type.
        """
        if len(self._types) >= _MAX_TYPES:
            self._types.clear()
            self._last_types.clear()
        self._types[schema_id] = document
        if signal.name is not None:
            self._last_types[signal.name] = schema_id
        signal.check_type(schema_id, document)

    def _guess_type(self, signal: Signal) -> None:
        """Check the value of a signal with the type that was last expected for its name.

        If the execution expects another type, the engine asks for a check with that type.
        """
        known = self._last_types.get(signal.name or "")
        if known is not None and signal.schema_id is None:
            # Another execution may expect another type; then the engine asks for that type.
            with suppress(InvalidInput):
                signal.check_type(known, self._types[known])

    async def deliver_by_token(self, token: str, signal: Signal) -> Delivered:
        """Send one signal to a waitpoint. The token is the whole address of the waitpoint."""
        signal.token = token
        return await self.deliver(token_address(token), signal)

    async def create_waitpoint(
        self,
        claimed: Claimed,
        waitpoint_id: UUID,
        key: str,
        *,
        expires_in: timedelta | None = None,
        step: tuple[str, int] | None = None,
    ) -> str:
        """Create a waitpoint under a lease and return its token.

        `key` is a name for the waitpoint. If no wait for it is opened within `expires_in`, the
        waitpoint expires. `step` is the name and the occurrence of the step that creates the
        waitpoint.
        """
        rows = await self._database.call(
            functions.CREATE_WAITPOINT,
            **lease_address(claimed, self._namespace),
            waitpoint_id=waitpoint_id,
            key=key,
            expires_in=expires_in,
            step_name=None if step is None else step[0],
            step_occurrence=None if step is None else step[1],
            patience=SETTLE_PATIENCE_SECONDS,
        )
        if rows[0]["outcome"] != "created":
            raise refusal(rows[0]["outcome"], rows[0]["detail"], id=str(claimed.id))
        return str(rows[0]["token"])

    async def close_waitpoint(
        self, id: AnyId, waitpoint_id: UUID, *, reason: str | None = None
    ) -> bool:
        """Close a waitpoint, so that its token is refused.

        Returns False if it was closed before.
        """
        id = await self._execution(id)
        rows = await self._database.call(
            functions.CLOSE_WAITPOINT,
            **address(id, self._namespace),
            waitpoint_id=waitpoint_id,
            reason=reason,
        )
        return bool(rows[0]["outcome"] == "closed")

    async def waitpoints(
        self, id: AnyId, *, after: UUID | None = None, limit: int = 100
    ) -> Sequence[PendingWaitpoint]:
        """Return the open waitpoints of an execution, without their tokens."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.LIST_PENDING_WAITPOINTS,
            **address(id, self._namespace),
            after=after,
            limit=limit,
        )
        return [_waitpoint(row) for row in rows]

    async def asked(self, token: str) -> AskedWaitpoint:
        """Return what a waitpoint asks for, as the holder of its token sees it. Raise InvalidToken
        for every wrong token.
        """
        id = token_address(token)
        rows = await self._database.call(
            functions.READ_WAITPOINT, **address(id, self._namespace), token=token
        )
        row = rows[0]
        if row["outcome"] not in list(WaitpointState):
            raise refusal(row["outcome"], None)
        return AskedWaitpoint(
            state=WaitpointState(row["outcome"]),
            key=row["key"],
            is_approval=row["is_approval"],
            question=row["question"],
            details=None if row["details"] is None else json.loads(row["details"]),
            decision=row["decision"],
            answered_at=row["answered_at"],
            expires_at=row["expires_at"],
            schema=None if row["schema"] is None else json.loads(row["schema"]),
        )

    async def read_token(self, id: AnyId, waitpoint_id: UUID) -> str | None:
        """Return the token of a waitpoint, for an operator; None if the waitpoint is not open."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.READ_WAITPOINT_TOKEN,
            **address(id, self._namespace),
            waitpoint_id=waitpoint_id,
        )
        return str(rows[0]["token"]) if rows else None

    async def expire_waitpoints(self, *, partition: int | None = None, limit: int = 500) -> Pass:
        """Close waitpoints whose time is over and for which no wait was opened."""
        return await handle_everywhere(
            self._database,
            functions.EXPIRE_WAITPOINTS,
            Due.WAITPOINT,
            partition=partition,
            limit=limit,
        )

    async def keys(self) -> Sequence[HmacKey]:
        """Return the keys that verify tokens, the current one first."""
        rows = await self._database.call(functions.LIST_HMAC_KEYS)
        return [_key(row) for row in rows]

    async def rotate_key(
        self,
        kid: str,
        *,
        grace: timedelta = timedelta(days=1),
        secret: str | None = None,
    ) -> Rotation:
        """Sign new tokens with a new key.

        Tokens signed with the previous key stay valid during the grace period.
        """
        rows = await self._database.call(
            functions.ROTATE_HMAC_KEY, kid=kid, grace=grace, secret=secret
        )
        return _rotation(rows[0])

    async def count_waitpoints(self) -> dict[str, int]:
        """For each hmac key, count the open waitpoints whose tokens the key signed.

        At most 100 000 are counted in each partition.
        """

        async def count(partition: int) -> Sequence[Any]:
            return await self._database.call(
                functions.COUNT_WAITPOINTS, partition_key=partition, namespace=self._namespace
            )

        total: Counter[str] = Counter()
        for rows in await ask_each(await self._database.partitions.all(), count):
            for row in rows:
                total[row["kid"]] += row["number"]
        return dict(total)

    async def seed_key(self, kid: str, secret: str) -> bool:
        """Install a key with a given secret. Returns False if a key with this name exists."""
        rows = await self._database.call(functions.SEED_HMAC_KEY, kid=kid, secret=secret)
        return bool(rows[0]["outcome"] == "seeded")

    def signal_arguments(
        self, id: ExecutionId, signal: Signal, database: str | None
    ) -> JsonSignalArguments:
        """Encode one signal for a call of ff.deliver_signal_json on the caller's connection."""
        signal.check()
        partition, uuid = location(id)
        item = {
            "execution_id": str(uuid),
            "signal_id": str(signal.id),
            "name": signal.name,
            "payload_base64": None
            if signal.payload is None
            else b64encode(signal.payload).decode(),
            "payload_encoding": signal.encoding,
            "dedup_key": signal.key,
            "source_type": signal.source_type,
            "source_identity": signal.source_identity,
            "schema_id": signal.schema_id,
        }
        return {
            "partition_key": partition,
            "namespace": self._namespace,
            "signal": json.dumps(item),
            "database": database,
        }

    async def ask(self, claimed: Claimed, wait: Wait) -> WaitAnswer:
        """Ask for the answer of a wait. Concurrent calls share transactions."""
        wait.check()
        batcher = self._asks.get(claimed.partition_key)
        if batcher is None:
            batcher = self._asks[claimed.partition_key] = Batcher(self._ask, self._ask_alone)
        return await batcher.put((claimed, wait))

    async def suspend(
        self,
        claimed: Claimed,
        *,
        waits: Sequence[tuple[str, int]] = (),
        targets: Sequence[ExecutionId] = (),
        k: int | None = None,
        until: datetime | None = None,
        reason_code: str = "waiting_for_signal",
        on_timeout: str = "auto_resume",
        resume_delay: timedelta | None = None,
        continuation: str | None = None,
        suspension_id: UUID | None = None,
    ) -> bool:
        """Suspend an execution until one of its `waits` is ready, `k` of the `targets` have ended
        (default: all), or the time `until` has come.

        A wait is given by its name and its occurrence. If the suspension would end immediately, the
        execution is not suspended and keeps its lease, and the result is False.
        """
        rows = await self._database.call(
            functions.SUSPEND_EXECUTION,
            **lease_address(claimed, self._namespace),
            suspension_id=suspension_id or uuid7(),
            wait_names=[name for name, _ in waits],
            wait_occurrences=[occurrence for _, occurrence in waits],
            targets=[id.uuid for id in targets],
            k=k,
            until_at=until,
            reason_code=reason_code,
            on_timeout=on_timeout,
            resume_delay=resume_delay,
            continuation=continuation,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        outcome = rows[0]["outcome"]
        if outcome not in ("suspended", "already_satisfied"):
            raise refusal(outcome, rows[0]["detail"], id=str(claimed.id))
        return bool(outcome == "suspended")

    async def resume(
        self,
        id: AnyId,
        *,
        reason: str | None = None,
        actor: str | None = None,
        delay: timedelta | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Resume a suspended execution. Each of its waits ends with its default value, or with an
        error if it has no default.
        """
        id = await self._execution(id)
        check_words(reason=reason, actor=actor)
        return await apply_once(
            self._database,
            self._namespace,
            functions.RESUME_EXECUTION,
            id,
            (EventKind.WOKEN,),
            if_version=if_version,
            actor=actor,
            wrote={"by": "operator", "reason": reason},
            reason=reason,
            delay=delay,
        )

    async def list(
        self,
        id: AnyId,
        *,
        after: UUID | None = None,
        limit: int = PAGE,
        signal_ids: Sequence[UUID] | None = None,
    ) -> Records:
        """Return the signals that an execution has received, in the order in which they were
        noticed. Signals that are not noticed yet come last.
        """
        id = await self._execution(id)
        rows = await self._database.call(
            functions.LIST_SIGNALS,
            **address(id, self._namespace),
            after=after,
            limit=limit,
            signal_ids=None if signal_ids is None else [*signal_ids],
        )
        return [_listed(row, row["signal_id"]) for row in rows]

    async def feed(
        self, cursor: str | None = None, *, limit: int = 500
    ) -> tuple[Found[FeedSignal], str]:
        """Return the next signals of all partitions after a cursor, and the cursor after them.

        No committed signal is skipped. Signals of one execution come in the order of the
        transactions that stored them. A page may have more than `limit` signals.

        If `cursor` is None, read from the beginning. If a partition cannot be reached, it is listed
        in `missing`, and its signals come on a later page.

        The cursor `now` reads no signals: only the cursor of this moment is returned. With
        `now`, a partition that cannot be reached is an error.
        """
        partitions = await self._database.partitions.all()
        cursors = _split_feed(cursor, len(partitions))
        share = share_of(limit, len(partitions)) if isinstance(limit, int) else limit

        async def read(partition: int) -> tuple[int, list[FeedSignal], str]:
            *rows, last = await self._database.call(
                functions.READ_SIGNALS,
                partition_key=partition,
                namespace=self._namespace,
                cursor=cursor if cursor in (None, "now") else cursors.get(partition),
                limit=share,
            )
            signals = [_feed_signal(partition, row) for row in rows]
            return partition, signals, str(last["next_cursor"])

        missing: tuple[int, ...] = ()
        if cursor == "now":
            # Raise if a partition cannot be reached. It would be missing in the new cursor, and the
            # next page would read it from the start.
            pages = await ask_each(partitions, read)
        else:
            pages, missing = await ask_reachable(partitions, read)
        # A merge keeps the order within each partition.
        found = merge(*(signals for _, signals, _ in pages), key=lambda one: one.accepted_at)
        cursors |= {partition: after for partition, _, after in pages}
        return Found(found, missing), _join_feed(cursors)

    async def observe(self, claimed: Claimed) -> Records:
        """Return the signals that ended the latest suspension of an execution."""
        rows = await self._database.call(
            functions.OBSERVE_SIGNALS, **lease_address(claimed, self._namespace)
        )
        return [_observed(row, row["signal_id"]) for row in rows]

    async def suspended(
        self, *, after: Suspended | None = None, limit: int = 100
    ) -> Found[Suspended]:
        """Return a page of suspended executions of all partitions, longest suspended first.

        `after` is the last execution of the previous page. `missing` names partitions that did not
        answer.
        """

        async def read(partition: int) -> Sequence[Suspended]:
            return await self._suspended_in(partition, after, limit)

        pages, missing = await ask_reachable(await self._database.partitions.all(), read)
        found = [one for page in pages for one in page]
        found.sort(key=lambda one: (one.suspended_at, one.id.uuid))
        return Found(found[:limit], missing)

    async def _suspended_in(
        self, partition: int, after: Suspended | None, limit: int
    ) -> Sequence[Suspended]:
        rows = await self._database.call(
            functions.LIST_SUSPENDED,
            partition_key=partition,
            namespace=self._namespace,
            after_at=None if after is None else after.suspended_at,
            after_id=None if after is None else after.id.uuid,
            limit=limit,
        )
        return [
            Suspended(
                id=ExecutionId.of(partition, row["execution_id"]),
                suspended_at=row["suspended_at"],
                reason_code=row["reason_code"],
                timeout_at=row["timeout_at"],
                on_timeout=row["on_timeout"],
                conditions=json.loads(row["conditions"]),
                continuation=row["continuation"],
            )
            for row in rows
        ]

    async def notice(self, *, partition: int | None = None, limit: int = 500) -> Pass:
        """Notice signals that were stored without a lock, and wake the executions that waited for
        them."""
        return await handle_everywhere(
            self._database, functions.NOTICE_SIGNALS, Due.SIGNAL, partition=partition, limit=limit
        )

    async def expire_suspensions(self, *, partition: int | None = None, limit: int = 500) -> Pass:
        """Apply the timeouts of suspensions whose time is over."""
        return await handle_everywhere(
            self._database,
            functions.EXPIRE_SUSPENSIONS,
            Due.SUSPENSION,
            partition=partition,
            limit=limit,
        )

    async def _send(
        self, batch: Sequence[Target], wait: bool = False, *, is_again: bool = False
    ) -> Sequence[Delivered | Exception | Busy]:
        keys = [signal.key for _, signal in batch]
        tokens = [signal.token for _, signal in batch]
        rows = await self._database.call(
            functions.DELIVER_SIGNALS,
            partition_key=batch[0][0].partition_key,
            namespace=self._namespace,
            execution_ids=[id.uuid for id, _ in batch],
            signal_ids=[signal.id for _, signal in batch],
            names=[signal.name for _, signal in batch],
            payloads=[signal.payload for _, signal in batch],
            payload_encodings=[signal.encoding for _, signal in batch],
            dedup_keys=keys if any(key is not None for key in keys) else None,
            source_types=[signal.source_type for _, signal in batch],
            source_identities=[signal.source_identity for _, signal in batch],
            categories=None,
            correlation_ids=None,
            is_transactional=False,
            wait=wait,
            tokens=tokens if any(token is not None for token in tokens) else None,
            schema_ids=[signal.schema_id for _, signal in batch],
        )
        found: list[Delivered | Exception | Busy] = [BUSY] * len(batch)
        typed: list[int] = []
        for row in rows:
            index = row["item"] - 1
            if row["outcome"] == "schema_required" and not is_again:
                detail = json.loads(row["detail"])
                try:
                    self.check_type(batch[index][1], detail["schema_id"], detail["document"])
                except InvalidInput as error:
                    found[index] = error
                else:
                    typed.append(index)
                continue
            if row["effect"] == "stored":
                self.notice_soon(batch[index][0].partition_key)
            answer = read_delivery(
                batch[index][0], row["outcome"], row["signal_id"], row["effect"], row["detail"]
            )
            if answer is not None:
                found[index] = answer
        if typed:
            again = await self._send([batch[index] for index in typed], wait, is_again=True)
            for index, one in zip(typed, again, strict=True):
                found[index] = one
        return found

    async def _send_alone(self, target: Target) -> Delivered:
        answer = (await self._send([target], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="deliver_signals")
        return answer

    def notice_soon(self, partition: int | None) -> None:
        """Notice the stored signals of a partition in the background. None means all partitions.

        If this fails, a reconciler notices the signals later.
        """
        self._stored.add(partition)
        if self._noticing is None:
            self._noticing = asyncio.create_task(self._notice_stored())

    async def _notice_stored(self) -> None:
        try:
            while self._stored:
                partition = self._stored.pop()
                for pause in busy_pauses():
                    await asyncio.sleep(pause)
                    _, due_in = await self.notice(partition=partition)
                    if due_in is None:
                        break
        except FlowFabricError as error:
            ENGINE_LOGGER.debug("signals left to the reconciler: %s", error)
        finally:
            self._noticing = None

    async def _ask(
        self, batch: Sequence[Asked], wait: bool = False, *, is_again: bool = False
    ) -> Sequence[WaitAnswer | Exception | Busy]:
        versions = [one.code_version for _, one in batch]
        rows = await self._database.call(
            functions.ASK_WAITS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            names=[one.name for _, one in batch],
            occurrences=[one.occurrence for _, one in batch],
            positions=[one.position for _, one in batch],
            are_sequential=[one.is_sequential for _, one in batch],
            conditions=[json.dumps(one.condition) for _, one in batch],
            timeouts=[one.timeout for _, one in batch],
            takes=[one.take for _, one in batch],
            wait=wait,
            follows=[one.follows for _, one in batch],
            code_versions=versions if any(versions) else None,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        found: list[WaitAnswer | Exception | Busy] = [BUSY] * len(batch)
        unknown: list[int] = []
        for row in rows:
            index, outcome = row["item"] - 1, row["outcome"]
            if outcome in ("taken", "ready", "timed_out", "open"):
                found[index] = WaitAnswer(
                    word=outcome,
                    recorded_at=row["recorded_at"],
                    until_at=row["until_at"],
                    ready_at=row["ready_at"],
                    taken_as=row["taken_as"],
                    value=row["value"],
                    attempt=attempt_number(row["attempt_index"]),
                    signal_ids=tuple(row["signal_ids"] or ()),
                )
            elif outcome != "busy":
                error = refusal(outcome, row["detail"], id=str(batch[index][0].id))
                found[index] = error
                if isinstance(error, UnknownRoute) and not is_again:
                    await self._steps.register_version(error)
                    unknown.append(index)
        if unknown:
            again = await self._ask([batch[index] for index in unknown], wait, is_again=True)
            for index, answer in zip(unknown, again, strict=True):
                found[index] = answer
        return found

    async def _ask_alone(self, item: Asked) -> WaitAnswer:
        answer = (await self._ask([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="ask_waits")
        return answer


def read_delivery(
    id: ExecutionId, outcome: str, signal_id: UUID, effect: str | None, detail: str | None
) -> Delivered | FlowFabricError | None:
    """Turn the answer for one signal into a result or an error; return None for `busy`."""
    if outcome in ("accepted", "duplicate"):
        return Delivered(signal_id, outcome == "duplicate", effect)
    if outcome == "busy":
        return None
    facts: dict[str, Any] = {"id": str(id)}
    return refusal(outcome, detail, **facts)


def read_json_delivery(id: ExecutionId, text: str) -> Delivered:
    """Decode an answer of ff.deliver_signal_json, or raise its refusal."""
    facts = json.loads(text)
    detail = json.dumps(facts.get("detail") or {})
    signal_id = UUID(facts["signal_id"]) if facts.get("signal_id") else UUID(int=0)
    answer = read_delivery(id, facts["outcome"], signal_id, facts.get("effect"), detail)
    if answer is None:
        raise RetryExhausted(operation="deliver_signals")
    if isinstance(answer, FlowFabricError):
        raise answer
    return answer


def _join_feed(cursors: Mapping[int, str]) -> str:
    """Join the positions in all partitions into one cursor of the feed: `0=0.7:9:8/1=0.3:3:`."""
    return "/".join(f"{partition}={cursors[partition]}" for partition in sorted(cursors))


def _split_feed(cursor: str | None, partitions: int) -> dict[int, str]:
    """Split a cursor of the feed into one position for each partition."""
    if cursor in (None, "now"):
        return {}
    found: dict[int, str] = {}
    for part in cursor.split("/") if isinstance(cursor, str) else [""]:
        number, sign, position = part.partition("=")
        known = number.isascii() and number.isdecimal() and len(number) < 6
        if not sign or not known or not int(number) < partitions or int(number) in found:
            raise InvalidInput(field="cursor", problem="is not a cursor of client.signals.feed")
        found[int(number)] = position
    return found


def _feed_signal(partition: int, row: Any) -> FeedSignal:
    return _from_feed(row, row["signal_id"], ExecutionId.of(partition, row["execution_id"]))
