-- Verify the tokens of a batch. Returns one text per item: the id of the waitpoint, invalid_token,
-- token_expired, or null for an item without a token. A token is also invalid if its partition or
-- its execution differs from that of the item.
drop function if exists ff._verify_tokens;
create function ff._verify_tokens(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_tokens        text[]
)
returns text[]
language plpgsql
volatile
as $$
declare
  v_now   constant timestamptz := ff.now();
  v_words text[] := array_fill(null::text, array[cardinality(p_tokens)]);
  v_token record;
begin
  for i in 1..cardinality(p_tokens) loop
    continue when p_tokens[i] is null;
    v_token := ff._verify_token(p_tokens[i], v_now);
    v_words[i] := case
      when v_token.word <> 'verified' then v_token.word
      when v_token.partition_key <> p_partition_key
        or v_token.execution_id is distinct from p_execution_ids[i] then 'invalid_token'
      else v_token.waitpoint_id::text end;
  end loop;
  return v_words;
end;
$$;
