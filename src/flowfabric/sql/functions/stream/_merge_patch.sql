-- Apply a JSON merge patch (RFC 7396) to a document. A null deletes its key.
--
-- All keys are merged together, because merging them one by one would copy the document for every
-- key.
drop function if exists ff._merge_patch;
create function ff._merge_patch(p_document jsonb, p_patch jsonb)
returns jsonb
language plpgsql
immutable
as $$
declare
  v_document jsonb := case when jsonb_typeof(p_document) = 'object' then p_document else '{}' end;
begin
  return
    (v_document - array(
      select e.key from jsonb_each(p_patch) e where jsonb_typeof(e.value) = 'null'))
    || coalesce((
      select jsonb_object_agg(e.key, case when jsonb_typeof(e.value) = 'object'
                                       then ff._merge_patch(v_document -> e.key, e.value)
                                       else e.value end)
      from jsonb_each(p_patch) e where jsonb_typeof(e.value) <> 'null'), '{}');
end;
$$;
