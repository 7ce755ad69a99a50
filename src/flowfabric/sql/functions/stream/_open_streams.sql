-- Open streams for leases that append for the first time. A stream that another call has locked is
-- not opened. The caller has locked the executions and checked the fences.
--
-- p_bases has the base of each execution: the number of journal entries when the run of the handler
-- began. The run sends again all frames whose position is the base or higher. If the stream already
-- has frames of the same generation at these positions, this call writes a rewind, which keeps only
-- the frames before these positions.
drop function if exists ff._open_streams;
create function ff._open_streams(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_bases         integer[]
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_now    constant timestamptz := ff.now();
  v_ms     constant bigint := floor(extract(epoch from v_now) * 1000)::bigint;
  v_ids    uuid[];
  v_bases  integer[];
  v_known  uuid[];
  v_rewind uuid[];
  -- These have one value for each rewind.
  v_at_ms  bigint[];
  v_at_seq integer[];
  v_to_ms  bigint[];
  v_to_seq integer[];
begin
  if p_execution_ids = '{}' then
    return;
  end if;
  v_known := array(
    select l.execution_id
    from (select u.id from unnest(p_execution_ids) u(id) order by u.id offset 0) a
    cross join lateral (
      select s.execution_id from ff.stream s
      where s.partition_key = p_partition_key and s.execution_id = a.id
      for no key update skip locked) l);
  select array_agg(u.id order by u.n), array_agg(u.base order by u.n) into v_ids, v_bases
  from unnest(p_execution_ids, p_bases) with ordinality u(id, base, n)
  where not exists (
      select from ff.stream s
      where s.partition_key = p_partition_key and s.execution_id = u.id
        -- The first append of this lease may have committed while its repeat waited for the
        -- execution. Then the stream is open already.
        and case when u.id = any (v_known)
                 then s.lease_id = (
                   select e.lease_id from ff.execution e
                   where e.partition_key = p_partition_key and e.execution_id = u.id)
                 else true end
      offset 0);
  if v_ids is null then
    return;
  end if;
  v_known := array(select k.id from unnest(v_known) k(id) where k.id = any (v_ids));

  insert into ff.stream (
    partition_key, execution_id, lease_id, generation, max_frames, max_bytes, retention, opened_at)
  select p_partition_key, e.execution_id, e.lease_id, coalesce(b.generation, 0),
         (b.policy #>> '{stream_policy,max_frames}')::bigint,
         coalesce((b.policy #>> '{stream_policy,max_bytes}')::bigint, 67108864),
         interval '1 ms' * (b.policy #>> '{stream_policy,retention_ms}')::double precision, v_now
  from unnest(v_ids) u(id)
  cross join lateral (
    select x.execution_id, x.lease_id from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id offset 0) e
  left join lateral (
    select y.generation, y.policy from ff.execution_body y
    where y.partition_key = p_partition_key and y.execution_id = u.id offset 0) b on true
  where u.id <> all (v_known);
  update ff.execution e set has_stream = true
  from (select p_partition_key as pk, u.id from unnest(v_ids) u(id) offset 0) i
  where e.partition_key = i.pk and e.execution_id = i.id
    and case when e.has_stream then false else true end;

  if v_known <> '{}' then
    update ff.stream s set
      lease_id = i.lease_id,
      last_no = -1,
      generation = i.generation,
      closed_at = null,
      close_reason = null,
      -- The frames of a replayed execution stay until it ends again.
      expires_at = case when s.durable_count + s.summary_count = 0 then s.expires_at end
    from (
      select p_partition_key as pk, u.id, x.lease_id, coalesce(b.generation, 0) as generation
      from unnest(v_known) u(id)
      cross join lateral (
        select e.lease_id from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
      left join lateral (
        select y.generation from ff.execution_body y
        where y.partition_key = p_partition_key and y.execution_id = u.id offset 0) b on true
      offset 0) i
    where s.partition_key = i.pk and s.execution_id = i.id;

    -- Among frames that no rewind has removed, a later frame never has a lower position. The last
    -- chunk is never removed by a rewind.
    select array_agg(u.id), array_agg(greatest(s.last_ms, v_ms)),
           array_agg(case when s.last_ms >= v_ms then s.last_seq + 1 else 0 end),
           array_agg(coalesce(m.to_ms, k.ms, 0)), array_agg(coalesce(m.to_seq, k.seq, 0))
      into v_rewind, v_at_ms, v_at_seq, v_to_ms, v_to_seq
    from unnest(v_ids, v_bases) u(id, base)
    cross join lateral (
      select y.last_ms, y.last_seq, y.generation from ff.stream y
      where y.partition_key = p_partition_key and y.execution_id = u.id offset 0) s
    cross join lateral (
      select c.position, c.generation from ff.stream_chunk c
      where c.partition_key = p_partition_key and c.execution_id = u.id
      order by c.ms desc, c.seq desc limit 1) l
    left join lateral (
      select c.ms, c.seq + c.frame_count - 1 as seq from ff.stream_chunk c
      where c.partition_key = p_partition_key and c.execution_id = u.id
        and c.mode <> 'rewind' and (c.generation, c.position) < (s.generation, u.base)
      order by c.ms desc, c.seq desc limit 1) k on true
    -- If a later rewind has removed that frame, use the frame to which the later rewind went back.
    left join lateral (
      select c.to_ms, c.to_seq from ff.stream_chunk c
      where c.partition_key = p_partition_key and c.execution_id = u.id
        and (c.ms, c.seq) > (k.ms, k.seq)
        and c.mode = 'rewind' and (c.to_ms, c.to_seq) < (k.ms, k.seq)
      order by c.to_ms, c.to_seq limit 1) m on true
    where u.id = any (v_known) and (l.generation, l.position) >= (s.generation, u.base);
    if v_rewind is not null then
      insert into ff.stream_chunk (
        partition_key, execution_id, ms, seq, frame_count, mode, mode_no, attempt_index, epoch,
        generation, position, first_no, byte_count, appended_at, to_ms, to_seq, payloads, kinds,
        encodings)
      select p_partition_key, u.id, u.at_ms, u.at_seq, 1, 'rewind', 0, e.attempt_index, e.epoch,
             s.generation, b.base, -1, 0, v_now, u.to_ms, u.to_seq, '{}', '{}', '{}'
      from unnest(v_rewind, v_at_ms, v_at_seq, v_to_ms, v_to_seq)
        u(id, at_ms, at_seq, to_ms, to_seq)
      join unnest(v_ids, v_bases) b(id, base) on b.id = u.id
      cross join lateral (
        select x.attempt_index, x.epoch from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id offset 0) e
      cross join lateral (
        select y.generation from ff.stream y
        where y.partition_key = p_partition_key and y.execution_id = u.id offset 0) s;
      update ff.stream s set last_ms = i.at_ms, last_seq = i.at_seq
      from (
        select p_partition_key as pk, u.id, u.at_ms, u.at_seq
        from unnest(v_rewind, v_at_ms, v_at_seq) u(id, at_ms, at_seq)
        offset 0) i
      where s.partition_key = i.pk and s.execution_id = i.id;
    end if;
  end if;
end;
$$;
