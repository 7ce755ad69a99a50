-- Refuse more lanes, tasks, code versions or unserved routes than one worker may cover.
drop function if exists ff._check_coverage;
create function ff._check_coverage(
  p_lanes         text[],
  p_tasks         text[],
  p_code_versions text[],
  p_unserved      bigint[] default null
)
returns void
language plpgsql
immutable
as $$
declare
  v_field   text;
  v_problem text;
begin
  if cardinality(p_lanes) > 1000 then
    v_field := 'lanes'; v_problem := 'must be at most 1000 names, or null for all';
  elsif cardinality(p_tasks) > 10000 then
    v_field := 'tasks'; v_problem := 'must be at most 10000 names, or null for any';
  elsif cardinality(p_code_versions) > 101 then
    v_field := 'code_versions'; v_problem := 'must be at most 101: its own and 100 that it reads';
  elsif cardinality(p_tasks)::bigint * cardinality(p_code_versions) > 100000 then
    v_field := 'code_versions';
    v_problem := 'tasks times code versions must be at most 100000: serve fewer in one worker';
  elsif cardinality(p_unserved) > 1000 then
    v_field := 'unserved'; v_problem := 'must be at most 1000 routes';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$$;
