-- Return the inner and the outer block of HMAC-SHA256 for a secret.
drop function if exists ff._hmac_blocks;
create function ff._hmac_blocks(p_secret bytea, out inner_block bytea, out outer_block bytea)
returns record
language plpgsql
immutable
as $$
declare
  v_key constant bytea := case when octet_length(p_secret) > 64 then sha256(p_secret)
                               else p_secret end;
begin
  inner_block := decode(repeat('36', 64), 'hex');
  outer_block := decode(repeat('5c', 64), 'hex');
  for i in 0..octet_length(v_key) - 1 loop
    inner_block := set_byte(inner_block, i, get_byte(v_key, i) # 54);
    outer_block := set_byte(outer_block, i, get_byte(v_key, i) # 92);
  end loop;
end;
$$;
