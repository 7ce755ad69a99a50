-- Record an act of an operator, in the transaction of the act.
--
-- If p_actor is null, the login is recorded as the actor. p_before and p_after are for people; no
-- function reads them. The caller can leave out facts that did not change.
drop function if exists ff._write_audit;
create function ff._write_audit(
  p_namespace text,
  p_actor     text,
  p_act       text,
  p_subject   text,
  p_reason    text default null,
  p_before    jsonb default null,
  p_after     jsonb default null)
returns void
language plpgsql
as $$
declare
  v_now constant timestamptz := ff.now();
begin
  insert into ff.audit (occurred_at, namespace, actor, act, subject, reason, before, after)
  values (v_now, p_namespace, coalesce(p_actor, session_user), p_act, p_subject, p_reason,
          p_before, p_after);
end;
$$;
