-- Exactly one key signs new tokens.
--
-- If no key signs, no waitpoint can be created. Older keys only verify tokens.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric key rotate NAME`.
select 'U10' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('%s keys sign tokens', k.number) as problem
from (select count(*) as number from ff.hmac_key x where x.is_active) k
where k.number <> 1
