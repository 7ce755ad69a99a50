-- Read the limits of a quota that are in force for one key. If an operator has set limits for this
-- key, these limits apply. Otherwise the limits that an operator has set for all keys apply. If
-- there are none, the declared limits apply. If the quota does not exist, there are no limits.
--
-- is_set says whether an operator has set the limits. is_refusing says whether the quota is
-- declared with the overflow `refuse`.
drop function if exists ff._read_limits;
create function ff._read_limits(
  p_namespace     text,
  p_quota         text,
  p_key           text,
  out concurrency integer,
  out rate        integer,
  out rate_window interval,
  out is_refusing boolean,
  out is_set      boolean
)
returns record
language plpgsql
as $$
begin
  select case when c.key is null then q.concurrency else c.concurrency end,
         case when c.key is null then q.rate else c.rate end,
         case when c.key is null then q.rate_window else c.rate_window end,
         q.overflow = 'refuse', c.key is not null
    into concurrency, rate, rate_window, is_refusing, is_set
  from ff.quota q
  left join lateral (
    select x.key, x.concurrency, x.rate, x.rate_window from ff.quota_change x
    where x.namespace = p_namespace and x.quota = p_quota and x.key in (p_key, '')
    order by x.key desc
    limit 1) c on true
  where q.namespace = p_namespace and q.quota = p_quota;
  is_refusing := coalesce(is_refusing, false);
  is_set := coalesce(is_set, false);
end;
$$;
