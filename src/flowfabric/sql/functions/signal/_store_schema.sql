-- Store a JSON Schema for the values of signals and return its id, a hash of the document. The same
-- document has the same id everywhere.
drop function if exists ff._store_schema;
create function ff._store_schema(p_document jsonb)
returns bigint
language plpgsql
as $$
declare
  v_now timestamptz;
  v_id constant bigint :=
    ('x' || encode(substr(sha256(convert_to(p_document::text, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
    & 9223372036854775807;
begin
  if not exists (select from ff.signal_schema s where s.schema_id = v_id) then
    v_now := ff.now();
    insert into ff.signal_schema (schema_id, document, registered_at)
    values (v_id, p_document, v_now)
    on conflict do nothing;
  end if;
  return v_id;
end;
$$;
