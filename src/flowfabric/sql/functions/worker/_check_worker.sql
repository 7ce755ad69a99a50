-- Refuse malformed arguments of ff.register_worker.
drop function if exists ff._check_worker;
create function ff._check_worker(
  p_namespace          text,
  p_worker_id          text,
  p_worker_instance_id text,
  p_lanes              text[],
  p_tasks              text[],
  p_capabilities       text[],
  p_liveness_ttl       interval,
  p_code_version       text,
  p_reads              text[],
  p_version_grace      interval,
  p_host               text,
  p_slots              integer
)
returns void
language plpgsql
immutable
as $$
declare
  v_field   text;
  v_problem text;
begin
  -- The names must follow the rules of a claim.
  perform ff._check_claim(p_worker_id, p_worker_instance_id,
                          'ffffffff-ffff-ffff-ffff-ffffffffffff', p_capabilities, 1,
                          interval '1 second');
  perform ff._check_coverage(
    p_lanes, p_tasks,
    p_code_version || array(select u.x from unnest(p_reads) u(x) limit 100));
  if p_namespace is null or octet_length(p_namespace) > 256 or p_namespace ~ E'[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be at most 256 bytes without whitespace or control characters; '
                 || 'an empty one means all';
  elsif exists (
      select from unnest(p_lanes) u(lane) where u.lane is null or u.lane !~ '^[ -~]{1,64}$') then
    v_field := 'lanes';
    v_problem := 'must be names of 1 to 64 printable ASCII characters, or null for all';
  elsif exists (
      select from unnest(p_tasks) u(task)
      where u.task is null or u.task !~ E'^[^\x01-\x20\x7f]+$' or octet_length(u.task) > 256) then
    v_field := 'tasks';
    v_problem := 'must be names of 1 to 256 bytes without whitespace or control characters, '
                 || 'or null for any';
  elsif ff._is_within(p_liveness_ttl, interval '1 second', interval '7 days') is not true then
    v_field := 'liveness_ttl'; v_problem := 'must be between one second and seven days';
  elsif not ff._is_code_version(p_code_version) then
    v_field := 'code_version';
    v_problem := 'must be 1 to 64 bytes without whitespace or control characters';
  elsif p_reads is null or cardinality(p_reads) > 100
     or (p_code_version is null and cardinality(p_reads) > 0)
     or exists (select from unnest(p_reads) u(x) where u.x is null or not ff._is_code_version(u.x))
    then
    v_field := 'reads';
    v_problem := 'must be at most 100 code versions, and empty if the worker has none';
  elsif ff._is_within(p_version_grace, interval '0', interval '7 days') is not true then
    v_field := 'version_grace'; v_problem := 'must be between 0 and seven days';
  elsif octet_length(p_host) not between 1 and 256 or p_host ~ E'[\x01-\x20\x7f]' then
    v_field := 'host';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif p_slots not between 1 and 100000 then
    v_field := 'slots'; v_problem := 'must be between 1 and 100000';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$$;
