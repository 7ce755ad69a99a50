-- Register types of signal values as JSON Schema and return their ids. A wait names the id of the
-- type that it expects, and ff.deliver_signals tells senders this type.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   the same ids
-- Rights:   app
drop function if exists ff.register_signal_schemas;
create function ff.register_signal_schemas(p_documents jsonb[])
returns table (item integer, schema_id bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if p_documents is null or cardinality(p_documents) > 1000 or array_ndims(p_documents) > 1
     or array_lower(p_documents, 1) <> 1
     or exists (select from unnest(p_documents) u(document)
                where u.document is null or jsonb_typeof(u.document) <> 'object'
                  or octet_length(u.document::text) > 262144) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'documents', 'problem', 'must be at most 1000 objects of at most 256 KiB each'));
  end if;
  for i in 1..cardinality(p_documents) loop
    item := i;
    schema_id := ff._store_schema(p_documents[i]);
    return next;
  end loop;
end;
$$;
