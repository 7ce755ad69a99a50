-- Open or close the lines of gates. The caller has locked the gates and written their counters.
--
-- A line is open if its gate has a free slot and room for a start. Reserved slots and starts count
-- as taken. If there is a free slot but no room for a start, the line is open only while it
-- contains an execution that resumes its attempt, because a resumed attempt does not count as a
-- start. In that case claims read only executions that resume (ff._read_candidates). p_leaving are
-- executions that the caller is about to lease; they do not count as in line.
drop function if exists ff._write_lines;
create function ff._write_lines(
  p_partition_key smallint,
  p_gate_ids      bigint[],
  p_leaving       uuid[],
  p_now           timestamptz
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
begin
  update ff.line y set is_open = t.is_open, served_at = p_now
  from (
    select p_partition_key as pk, l.route_id, u.id,
           case when g.running + (g.reserved_for is not null)::integer >= g.max_running then false
                when g.opens_at > p_now or g.rate <= (g.start_for is not null)::integer then exists (
                  select from ff.execution e
                  where e.partition_key = p_partition_key and e.line_id = u.id
                    and e.route_id = l.route_id
                    and e.phase = 'runnable' and e.attempt_state = 'attempt_interrupted'
                    and e.execution_id <> all (p_leaving) offset 0)
                else true end as is_open
    from unnest(p_gate_ids) u(id)
    cross join lateral (
      select x.running, x.max_running, x.reserved_for, x.opens_at, x.rate, x.start_for
      from ff.gate x
      where x.partition_key = p_partition_key and x.gate_id = u.id offset 0) g
    cross join lateral (
      select x.route_id from ff.line x
      where x.partition_key = p_partition_key and x.gate_id = u.id offset 0) l
    offset 0) t
  where y.partition_key = t.pk and y.route_id = t.route_id and y.gate_id = t.id
    and y.is_open <> t.is_open;
end;
$$;
