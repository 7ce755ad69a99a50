-- Return the id of a route: a hash of its columns. The ids of routes with a code version are in the
-- upper half of the range, all other ids in the lower half.
drop function if exists ff._hash_route;
create function ff._hash_route(
  p_namespace    text,
  p_lane         text,
  p_task         text,
  p_capabilities text[],
  p_code_version text
)
returns bigint
language plpgsql
immutable
as $$
declare
  v_hash constant bigint := ('x' || substr(encode(sha256(convert_to(
    concat_ws(E'\x01', p_namespace, p_lane, p_task, array_to_string(p_capabilities, ','),
              p_code_version), 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint & 4611686018427387903;
begin
  return case when p_code_version is null then v_hash else v_hash + 4611686018427387904 end;
end;
$$;
