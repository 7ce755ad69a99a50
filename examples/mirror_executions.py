"""Subscriptions: mirror the state of executions into a table of your own.

python examples/mirror_executions.py
"""

from __future__ import annotations

import asyncio

import psycopg

from flowfabric import App

app = App(name="shop", version="1")

TABLE = """
create table if not exists order_state (
  execution_id uuid primary key,
  task         text not null,
  state        text not null,
  version      integer not null,
  changed_at   timestamptz not null
)"""

# The events of an execution come in order, but may come twice: the version makes a repeat harmless.
UPSERT = """
insert into order_state (execution_id, task, state, version, changed_at)
values (%s, %s, %s, %s, %s)
on conflict (execution_id) do update
set state = excluded.state, version = excluded.version, changed_at = excluded.changed_at
where order_state.version < excluded.version"""


@app.task(name="shop.pack")
async def pack(item: str) -> str:
    if item == "unicorn":
        raise ValueError("unicorns are sold out")
    return f"packed {item}"


@app.task(name="stock.count")
async def count() -> int:
    return 7


async def mirror(*, follow: bool = True) -> int:
    """Mirror what happens to executions of the shop; return how many events were new."""
    events = app.subscribe(
        "order-state",
        kinds=["submitted", "completed", "failed", "cancelled"],
        task="shop.*",
        follow=follow,
    )
    changes = 0
    async with await psycopg.AsyncConnection.connect(str(app.database_url)) as connection:
        await connection.execute(TABLE)
        await connection.commit()
        async for event in events:
            done = await connection.execute(
                UPSERT, (event.id.uuid, event.task, event.kind, event.version, event.occurred_at)
            )
            await connection.commit()
            await event.ack()
            changes += done.rowcount
    return changes


async def main() -> None:
    async with app:
        await app.prepare()
        await mirror(follow=False)  # creates the subscription: it begins here
        worker = asyncio.create_task(app.run_worker())
        runs = [await pack.submit("tea"), await pack.submit("unicorn"), await count.submit()]
        async with asyncio.timeout(60):
            for run in runs:
                while not (await run.state()).is_terminal:
                    await asyncio.sleep(0.05)
        print(f"{await mirror(follow=False)} changes mirrored")
        print(f"{await mirror(follow=False)} changes mirrored after a restart")
        async with await psycopg.AsyncConnection.connect(str(app.database_url)) as connection:
            rows = await connection.execute("select task, state from order_state order by state")
            for task, state in await rows.fetchall():
                print(task, state)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
