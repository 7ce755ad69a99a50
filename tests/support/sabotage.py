"""Changes behind the engine's back: to break a test database and see whether its guards notice, and
to reach a state that no function leads to yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from .database import Connection


async def drop_checks(connection: Connection) -> None:
    """Take the CHECK constraints off ff's tables, so that only the guard under test is left."""
    await connection.execute(
        """
        do $$
        declare
          v_check record;
        begin
          for v_check in
            select c.conrelid::regclass as table_name, c.conname
            from pg_constraint c
            where c.contype = 'c' and c.connamespace = 'ff'::regnamespace
          loop
            execute format('alter table %s drop constraint %I',
                           v_check.table_name, v_check.conname);
          end loop;
        end
        $$
        """
    )


@asynccontextmanager
async def unwitnessed(connection: Connection) -> AsyncIterator[None]:
    """Keep the witness from looking at what this connection writes in the block."""
    await connection.execute("set session_replication_role = replica")
    try:
        yield
    finally:
        await connection.execute("set session_replication_role = origin")


async def revoke(connection: Connection, execution_id: UUID) -> None:
    """Take a lease away (T20) as an operator will one day: there is no function for it yet."""
    await connection.execute(
        """
        with taken as (
          update ff.execution e set
            ownership = 'lease_revoked',
            blocking_reason = 'waiting_for_worker',
            attempt_state = 'attempt_interrupted',
            cause = 'revoke_lease',
            version = e.version + 1,
            epoch = e.epoch + 1,
            last_lease_id = e.lease_id,
            last_lease_end = 'revoke_lease',
            last_worker_id = e.worker_id,
            last_worker_instance_id = e.worker_instance_id,
            lease_id = null,
            lease_expires_at = null,
            worker_id = null,
            worker_instance_id = null,
            due_at = null,
            attempt_paused_at = ff.now(),
            attempt_pause_cause = 'lease_revoked',
            transitioned_at = greatest(ff.now(), e.transitioned_at),
            mutated_at = greatest(ff.now(), e.transitioned_at)
          where e.execution_id = $1
          returning e.*
        )
        insert into ff.event (
          partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
          worker_instance_id, route_id, namespace, occurred_at, actor)
        select t.partition_key, pg_current_xact_id(), t.execution_id, t.version, 'lease_revoked',
               t.attempt_index, t.last_lease_id, t.epoch, t.last_worker_instance_id, t.route_id,
               t.namespace, t.transitioned_at, 'an operator'
        from taken t
        """,
        execution_id,
    )
