-- Configure the transaction of the checks: names without a schema are looked up in pg_catalog only,
-- no statement timeout applies, and large joins get more memory.
select pg_catalog.set_config(s.name, s.value, true)
from (values
  ('search_path', 'pg_catalog'), ('statement_timeout', '0'), ('jit', 'off'), ('work_mem', '64MB')
) s(name, value)
