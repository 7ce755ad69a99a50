-- Sign posts with the secret of a webhook. p_ids and p_bodies are the ids and the bodies of the
-- posts. A signature is the HMAC-SHA256 of the id, the time of this call and the body. It has the
-- form of standardwebhooks.com: `v1,` and the digest in base64.
--
-- The holder of the webhook calls this. An operator can sign without a lease, for a test:
-- p_holder_id is then null. After the webhook was created, its secret never leaves the database.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF313 webhook_not_found · WF501 forbidden · as outcome:
--           subscription_lost
-- Locks:    none
-- Repeat:   signatures for the time of the second call, in whole seconds
-- Rights:   app
drop function if exists ff.sign_webhook;
create function ff.sign_webhook(
  p_namespace text,
  p_name      text,
  p_holder_id uuid,
  p_epoch     bigint,
  p_ids       text[],
  p_bodies    bytea[]
)
returns table (item integer, outcome text, signed_at timestamptz, signature text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_row ff.subscription;
begin
  perform ff._check_namespace(p_namespace);
  if p_ids is null or p_bodies is null or cardinality(p_ids) <> cardinality(p_bodies)
     or cardinality(p_ids) not between 1 and 1000
     or array_ndims(p_ids) > 1 or array_ndims(p_bodies) > 1
     or array_position(p_ids, null) is not null or array_position(p_bodies, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'bodies', 'problem', 'must be 1 to 1000, as many as ids'));
  end if;
  if p_holder_id is null then
    perform ff._check_operator('sign_webhook');
  end if;
  v_now := ff.now();
  v_now := date_trunc('second', v_now);
  select s.* into v_row
  from ff.subscription s
  where s.namespace = p_namespace and s.name = p_name and s.webhook_id is not null;
  if not found then
    perform ff._refuse('WF313', 'webhook_not_found', jsonb_build_object('webhook', p_name));
  end if;
  if p_holder_id is not null
     and (v_row.holder_id, v_row.epoch) is distinct from (p_holder_id, p_epoch) then
    return query select 1, 'subscription_lost', null::timestamptz, null::text;
    return;
  end if;
  return query
  select b.no::integer, 'signed', v_now,
         'v1,' || translate(encode(sha256(v_row.outer_block || sha256(
           v_row.inner_block
           || convert_to(b.id || '.' || extract(epoch from v_now)::bigint || '.', 'UTF8')
           || b.body)), 'base64'), E'\n', '')
  from unnest(p_ids, p_bodies) with ordinality b(id, body, no)
  order by b.no;
end;
$$;
