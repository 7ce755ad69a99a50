-- Configure the transaction of a check. Names without a schema are looked up in pg_catalog only. No
-- statement timeout applies. Queries are not compiled (jit). Each sort and each hash join gets 64
-- MB.
select pg_catalog.set_config(s.name, s.value, true)
from (values
  ('search_path', 'pg_catalog'), ('statement_timeout', '0'), ('jit', 'off'), ('work_mem', '64MB')
) s(name, value)
