-- Compute the delay before the next retry. It depends on the stored back-off, the number of retries
-- so far, and a random number from 0 to 1.
drop function if exists ff._backoff_delay;
create function ff._backoff_delay(p_backoff jsonb, p_retry_count integer, p_chance double precision)
returns interval
language plpgsql
immutable
as $$
declare
  v_initial double precision := coalesce((p_backoff ->> 'initial_delay_ms')::double precision, 1000);
  v_max     double precision := coalesce((p_backoff ->> 'max_delay_ms')::double precision, 60000);
  v_factor  double precision := coalesce((p_backoff ->> 'multiplier')::double precision, 2);
  v_delay   double precision;
begin
  v_delay := case coalesce(p_backoff ->> 'type', 'exponential')
    when 'fixed' then coalesce((p_backoff ->> 'delay_ms')::double precision, 1000)
    when 'exponential' then
      -- Use logarithms, because the power can overflow a double.
      case when v_initial <= 0 then 0
           when ln(v_initial) + p_retry_count * ln(greatest(v_factor, 1e-9)) >= ln(greatest(v_max, 1))
             then v_max
           when ln(v_initial) + p_retry_count * ln(greatest(v_factor, 1e-9)) < ln(0.001) then 0
           else least(v_initial * power(greatest(v_factor, 1e-9), p_retry_count), v_max) end
    else 1000
  end;
  if coalesce((p_backoff ->> 'jitter')::boolean, false) then
    v_delay := v_delay * (0.5 + 0.5 * p_chance);
  end if;
  return interval '1 millisecond' * v_delay;
end;
$$;
