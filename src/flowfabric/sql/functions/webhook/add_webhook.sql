-- Create a webhook: a subscription with a URL to which workers post its events. Returns the secret
-- that signs these posts.
--
-- The database makes the secret and returns it once, so that no parameter and no log contains it. A
-- second call with the same name and webhook id replaces the secret, because the caller may not
-- have received the first one. The second call changes nothing else. If another webhook or a
-- subscription has the name, the call is refused as webhook_exists.
--
-- The client checks the URL. Before every post, the worker checks the host of the URL against its
-- own list of allowed hosts.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF227 too_many_subscriptions · WF416 webhook_exists
--           · WF501 forbidden
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   the same webhook, with a new secret
-- Rights:   operator
drop function if exists ff.add_webhook;
create function ff.add_webhook(
  p_namespace  text,
  p_name       text,
  p_webhook_id uuid,
  p_url        text,
  p_host       text,
  p_cursor     text,
  p_kinds      text[] default null,
  p_tasks      text[] default null,
  p_has_detail boolean default false,
  p_actor      text default null
)
returns table (outcome text, secret text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_problem text[];
  v_row     ff.subscription;
  v_secret  constant bytea := sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
  v_blocks  record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_operator('add_webhook');
  perform ff._check_actor_and_reason(p_actor, null);
  v_problem := coalesce(
    ff._subscription_problem(p_namespace, p_name, p_kinds, p_tasks, null, null, 'resume', '7 days'),
    case when p_webhook_id is null then array['webhook_id', 'must be given']
         when p_url is null or p_url !~ E'^https://[\x21-\x7e]+$' or octet_length(p_url) > 2048
           then array['url', 'must begin with https:// and have at most 2048 characters']
         when p_host is null or octet_length(p_host) > 300
           then array['host', 'must be the host and port of the URL']
         when p_has_detail is null then array['has_detail', 'must be true or false']
         when p_cursor is null or ff._cursor_problem(p_cursor) is not null
           then array['cursor', coalesce(ff._cursor_problem(p_cursor), 'must be given')] end);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_row := ff._lock_subscription(p_namespace, p_name);
  v_now := ff.now();
  if v_row.name is null and (
      select count(*) from ff.subscription s where s.namespace = p_namespace) >= 100 then
    perform ff._refuse('WF227', 'too_many_subscriptions', jsonb_build_object(
      'namespace', p_namespace, 'most', 100,
      'hint', 'remove subscriptions that nobody reads: flowfabric subscription rm'));
  end if;
  v_blocks := ff._hmac_blocks(v_secret);
  insert into ff.subscription as s (
    namespace, name, kinds, tasks, cursor_text, on_expiry, keep, created_at, changed_by, webhook_id,
    url, host, inner_block, outer_block, has_detail)
  values (
    p_namespace, p_name, p_kinds, p_tasks, p_cursor, 'resume', '7 days', v_now, p_actor,
    p_webhook_id, p_url, p_host, v_blocks.inner_block, v_blocks.outer_block, p_has_detail)
  on conflict (namespace, name) do update
    set inner_block = excluded.inner_block, outer_block = excluded.outer_block
    where s.webhook_id = excluded.webhook_id;
  -- The other webhook or subscription may have been committed after the row was looked for.
  if not found then
    perform ff._refuse('WF416', 'webhook_exists', jsonb_build_object(
      'webhook', p_name, 'hint', 'a webhook or a subscription has this name; choose another'));
  end if;
  return query
  select 'added', 'whsec_' || translate(encode(v_secret, 'base64'), E'\n', '');
end;
$$;
