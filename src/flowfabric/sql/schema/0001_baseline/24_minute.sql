-- Minutes: how many events of each kind a task had in a minute, and their latencies. A reconciler
-- counts the events of the log. A read of hours or days needs only this table.

-- A row counts one minute, or is a sum of 10 minutes, an hour or 6 hours. A read of a day adds up a
-- few sums instead of 1440 minutes.
--
-- Latencies are counted in buckets. Bucket n counts latencies of more than 1.1^(n-1) ms and at most
-- 1.1^n ms, so a percentile is right within 5 %.
create table ff.minute (
  partition_key smallint      not null,
  -- how many minutes the row counts
  minutes       smallint      not null default 1,
  starts_at     timestamptz   not null,
  namespace     text          not null,
  lane          text          not null,
  task          text          not null,
  kind          ff.event_kind not null,
  event_count   bigint        not null,
  -- the buckets that are not empty, and how many events each has, in the same order
  buckets       smallint[]    not null,
  counts        integer[]     not null,
  primary key (partition_key, minutes, starts_at, namespace, lane, task, kind),
  constraint length_is_known check (minutes in (1, 10, 60, 360)),
  constraint each_bucket_has_a_count check (cardinality(buckets) = cardinality(counts))
);

-- How far the events of a partition have been counted. Counts and position change in one
-- transaction, so every event is counted once.
create table ff.minute_position (
  partition_key smallint    primary key,
  cursor_text   text        not null,
  -- The sums count every minute before this instant, and no minute after it.
  summed_at     timestamptz not null default '-infinity',
  -- when events were lost before they could be counted, if ever
  lost_at       timestamptz
);
