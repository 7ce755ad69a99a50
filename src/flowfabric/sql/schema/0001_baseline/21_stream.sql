-- Streams: the frames that an execution sends while it runs.
--
-- An execution has one stream, made by its first append. Frames are stored in chunks. A chunk is
-- one row. All its frames have the same mode and come from one append. Ids (ms-seq) rise for the
-- whole life of the execution, even if the clock goes back.
--
-- The row of the stream stops appends of ended leases. The first append of a lease locks the
-- execution, and writes the lease into the row of the stream. Later appends lock only the row of
-- the stream, and then read the lease of the execution. Every function that ends a lease updates
-- the row of the stream. So the end of a lease waits for an append in flight, and no append of that
-- lease can follow. An append that finds the row locked is answered `busy`. Lock order: execution,
-- then stream.
--
-- A handler that starts again sends frames again. The position of a chunk is the number of journal
-- entries that the execution had when the chunk was sent. The first append of a later lease gives
-- the base: how many entries there were when the new run of the handler began. The run sends again
-- every frame whose position is the base or higher. So the append writes a chunk of mode `rewind`,
-- which names the last id that stays valid.

create type ff.stream_mode as enum ('durable', 'summary', 'best_effort', 'rewind');

create table ff.stream (
  partition_key  smallint       not null,
  execution_id   uuid           not null,
  -- the lease that may append; null while the stream is closed
  lease_id       uuid,
  -- the number of the last frame of this lease; the frames of a lease are numbered from 0
  last_no        bigint         not null default -1,
  -- the id of the last frame
  last_ms        bigint         not null default 0,
  last_seq       integer        not null default 0,
  -- frames ever appended, by mode
  durable_count     bigint      not null default 0,
  summary_count     bigint      not null default 0,
  best_effort_count bigint      not null default 0,
  -- bytes ever appended, and bytes that are stored now
  total_bytes    bigint         not null default 0,
  stored_bytes   bigint         not null default 0,
  -- how many durable frames were removed, and the floor: all removed frames have a lower id
  trimmed_count  bigint         not null default 0,
  floor_ms       bigint         not null default 0,
  floor_seq      integer        not null default 0,
  -- the generation of the execution when this lease began
  generation     integer        not null default 0,
  -- the stream policy of the execution
  max_frames     bigint,
  max_bytes      bigint         not null default 67108864,
  retention      interval,
  -- best effort: frames per second, the last append, and how many frames are kept
  rate           double precision,
  rated_ms       bigint,
  kept_frames    integer,
  opened_at      timestamptz    not null,
  last_frame_at  timestamptz,
  closed_at      timestamptz,
  close_reason   ff.lease_end,
  -- when its frames are removed; null if they stay as long as the execution
  expires_at     timestamptz,
  primary key (partition_key, execution_id),
  constraint closed_without_lease check (
    (lease_id is null) = (closed_at is not null) and (closed_at is null) = (close_reason is null))
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000
);

create index stream_expiry on ff.stream (partition_key, expires_at) where expires_at is not null;


create table ff.stream_chunk (
  partition_key   smallint       not null,
  execution_id    uuid           not null,
  -- the id of its first frame; the other frames have the same ms and the next values of seq
  ms              bigint         not null,
  seq             integer        not null,
  frame_count     integer        not null,
  mode            ff.stream_mode not null,
  -- how many frames of this mode the stream had after this chunk
  mode_no         bigint         not null,
  attempt_index   integer        not null,
  epoch           bigint         not null,
  generation      integer        not null,
  -- how many journal entries the execution had when the chunk was sent
  position        integer        not null,
  -- the number of its first frame in its lease; -1 for a rewind
  first_no        bigint         not null,
  byte_count      integer        not null,
  appended_at     timestamptz    not null,
  -- a rewind: the last id that stays valid
  to_ms           bigint,
  to_seq          integer,
  -- one value for each frame
  payloads        bytea[]        not null,
  kinds           text[]         not null,
  encodings       text[]         not null,
  correlation_ids text[],
  primary key (partition_key, execution_id, ms, seq),
  constraint rewind_has_a_target check (
    (mode = 'rewind') = (to_ms is not null) and (mode = 'rewind') = (to_seq is not null))
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- The chunks that are trimmed while the execution runs.
create index stream_chunk_trim on ff.stream_chunk (partition_key, execution_id, mode, mode_no)
  where mode in ('summary', 'best_effort');


-- The document that the summary frames of an execution have built. Its version is the number of
-- these frames.
create table ff.stream_summary (
  partition_key    smallint    not null,
  execution_id     uuid        not null,
  document         jsonb       not null,
  version          bigint      not null,
  first_applied_at timestamptz not null,
  updated_at       timestamptz not null,
  primary key (partition_key, execution_id)
);
