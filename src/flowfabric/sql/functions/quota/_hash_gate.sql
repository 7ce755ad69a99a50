-- Return the id of the gate of a quota or budget for one key. The id is a hash. Ids of budgets are
-- in the upper half of the range, ids of quotas in the lower half.
drop function if exists ff._hash_gate;
create function ff._hash_gate(
  p_is_budget boolean,
  p_namespace text,
  p_name      text,
  p_key       text
)
returns bigint
language plpgsql
immutable
as $$
declare
  v_hash constant bigint := ('x' || substr(encode(sha256(convert_to(
    concat_ws(E'\x01', case when p_is_budget then 'budget' else 'quota' end, p_namespace, p_name,
              p_key), 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint & 4611686018427387903;
begin
  return case when p_is_budget then v_hash + 4611686018427387904 else v_hash end;
end;
$$;
