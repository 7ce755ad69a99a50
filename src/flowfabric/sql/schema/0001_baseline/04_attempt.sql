-- Ended attempts that were followed by another attempt. The latest attempt is on the row of its
-- execution.

create table ff.attempt (
  partition_key           smallint             not null,
  attempt_index           integer              not null,
  execution_id            uuid                 not null,
  attempt_id              uuid                 not null,
  attempt_type            ff.attempt_type      not null,
  epoch                   bigint               not null,
  started_at              timestamptz          not null,
  ended_at                timestamptz          not null,
  ended_as                ff.attempt_lifecycle not null,
  previous_attempt_index  integer,
  attempt_reason          text,
  failure_class           ff.failure_class,
  failure_category        text,
  failure_reason          text,
  failure_detail          bytea,
  failure_place           text,
  last_lease_id           uuid,
  last_lease_end          ff.lease_end,
  last_lease_retry_at        timestamptz,
  last_worker_id          text,
  last_worker_instance_id text,
  primary key (partition_key, execution_id, attempt_index),
  constraint ended_means_ended check (
    ended_as in ('ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed'))
);
