-- For the length of a transaction: names are found where they are written, no time limit that is
-- meant for an application, memory for large joins.
select pg_catalog.set_config(s.name, s.value, true)
from (values
  ('search_path', 'pg_catalog'), ('statement_timeout', '0'), ('jit', 'off'), ('work_mem', '64MB')
) s(name, value)
