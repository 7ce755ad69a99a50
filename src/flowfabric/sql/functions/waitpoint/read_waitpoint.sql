-- Read the waitpoint of a token, for the holder of the token: the question, and whether it is
-- answered. The call reveals nothing else about the execution.
--
-- Every wrong token gets the outcome invalid_token, as in ff.deliver_signals. A token is also wrong
-- if it belongs to an execution other than p_execution_id, or to a namespace other than
-- p_namespace. If the token is signed with a key whose grace is over, the outcome is token_expired.
--
-- For any other token, the outcome is `answered` if the waitpoint has an answer that is not spent.
-- Otherwise it is `closed` if the waitpoint was closed, if its execution has ended, or if the
-- waitpoint expired before a wait for it was opened. Otherwise it is `open`.
--
-- expires_at is null if the waitpoint does not expire, for example because a wait for it has been
-- opened. `schema` is the type of the answer. It is null if no wait has declared a type.
--
-- Moves:    nothing
-- Refuses:  as outcome: invalid_token · token_expired
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_waitpoint;
create function ff.read_waitpoint(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_token         text
)
returns table (
  outcome     text,
  key         text,
  is_approval boolean,
  question    text,
  details     bytea,
  decision    text,
  answered_at timestamptz,
  expires_at  timestamptz,
  schema      text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := ff.now();
  v_token record;
  v_point ff.waitpoint;
  v_phase ff.phase;
begin
  perform ff._check_namespace(p_namespace);
  v_token := ff._verify_token(p_token, v_now);
  if v_token.word = 'verified' and (v_token.partition_key <> p_partition_key
     or v_token.execution_id is distinct from p_execution_id) then
    v_token.word := 'invalid_token';
  end if;
  if v_token.word = 'verified' then
    select w.* into v_point from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.waitpoint_id = v_token.waitpoint_id;
    select e.phase into v_phase from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
      and case when p_namespace is null then true else e.namespace = p_namespace end;
    if v_point.waitpoint_id is null or v_phase is null then
      v_token.word := 'invalid_token';
    end if;
  end if;
  if v_token.word <> 'verified' then
    return query select v_token.word, null::text, null::boolean, null::text, null::bytea,
                        null::text, null::timestamptz, null::timestamptz, null::text;
    return;
  end if;
  return query
  select case
           when g.accepted_at is not null then 'answered'
           when v_point.closed_at is not null or v_phase = 'terminal'
             or (v_point.activated_at is null and v_point.expires_at <= v_now) then 'closed'
           else 'open' end,
         v_point.key, v_point.approval_id is not null, a.question, a.details,
         case when v_point.approval_id is not null then g.name end, g.accepted_at,
         case when v_point.activated_at is null then v_point.expires_at end, s.document::text
  from (select p_partition_key as pk) p
  left join lateral (
    select x.question, x.details from ff.approval x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      and x.approval_id = v_point.approval_id
    offset 0) a on true
  left join lateral (
    select x.name, x.accepted_at from ff.signal x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      and x.waitpoint_id = v_point.waitpoint_id
      -- Leave out spent answers: after a replay the question is open again.
      and case when x.taken_at is not null and x.wait_name is null then false else true end
    order by x.accepted_at, x.signal_id
    limit 1) g on true
  left join lateral (
    select x.document from ff.signal_schema x where x.schema_id = v_point.schema_id
    offset 0) s on true;
end;
$$;
