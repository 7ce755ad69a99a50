-- The two blocks that an hmac key stores were made from the same secret.
--
-- Each block is the secret, XORed with a constant of its own. So the XOR of the two blocks is the
-- same for every key. If it differs, a block is damaged, and no other database with the same secret
-- accepts the tokens that the key signs.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric key rotate NAME` makes a new key. To keep the tokens of the damaged key
--          valid, restore its row from a backup.
select 'U11' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('the blocks of key %s do not belong together', k.kid) as problem
from ff.hmac_key k
where exists (
  select from generate_series(0, 63) i
  where (get_byte(k.inner_block, i) # get_byte(k.outer_block, i)) <> 106)
