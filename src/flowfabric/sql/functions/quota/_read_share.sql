-- Read one partition's share of a limit. A single partition has the whole limit.
drop function if exists ff._read_share;
create function ff._read_share(
  p_gate_id       bigint,
  p_share_no      integer,
  p_partitions    integer,
  p_concurrency   integer,
  p_rate          integer,
  out concurrency integer,
  out rate        integer
)
returns record
language plpgsql
as $$
begin
  concurrency := p_concurrency;
  rate := p_rate;
  if p_partitions > 1 then
    select case when p_concurrency is not null then coalesce(s.concurrency, 0) end,
           case when p_rate is not null then coalesce(s.rate, 0) end
      into concurrency, rate
    from (select 1) o
    left join ff.gate_share s on s.gate_id = p_gate_id and s.share_no = p_share_no;
  end if;
end;
$$;
