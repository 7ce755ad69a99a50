-- Waits for runs: one row per awaited execution, deleted when the waiting execution continues.
create table ff.run_wait (
  partition_key smallint    not null,
  waiter_id     uuid        not null,
  target_id     uuid        not null,
  wait_no       integer     not null,
  ended_at      timestamptz,
  primary key (partition_key, waiter_id, target_id)
);

create index run_wait_target on ff.run_wait (partition_key, target_id) where ended_at is null;
