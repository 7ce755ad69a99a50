-- Apply a JSON merge patch (RFC 7396) to a document. A null deletes its key.
drop function if exists ff._merge_patch;
create function ff._merge_patch(p_document jsonb, p_patch jsonb)
returns jsonb
language plpgsql
immutable
as $$
declare
  v_document jsonb := case when jsonb_typeof(p_document) = 'object' then p_document else '{}' end;
  v_entry    record;
begin
  for v_entry in select e.key, e.value from jsonb_each(p_patch) e loop
    v_document := case jsonb_typeof(v_entry.value)
      when 'null' then v_document - v_entry.key
      when 'object' then v_document || jsonb_build_object(
        v_entry.key, ff._merge_patch(v_document -> v_entry.key, v_entry.value))
      else v_document || jsonb_build_object(v_entry.key, v_entry.value) end;
  end loop;
  return v_document;
end;
$$;
