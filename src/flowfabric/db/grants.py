"""Grant rights in schema ff to two roles, if they exist. No other role gets rights.

`flowfabric_app` is for applications and their workers. It can call the functions whose header says
`Rights: app`, and read the view ff.installation. `flowfabric_operator` can call every public
function and read all views. Neither role can access a table, or call a function whose name starts
with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from flowfabric.db.library import Library

APP_ROLE = "flowfabric_app"
OPERATOR_ROLE = "flowfabric_operator"
# A process reads this view at its start to check the schema. It contains no executions.
_INSTALLATION = "installation"

_FOR_OPERATORS = re.compile(r"^-- Rights: +operator\b", re.MULTILINE)

_GRANTS = """\
do $$
declare
  v_role   text;
  v_object text;
begin
  revoke all on all routines in schema ff from public;
  for v_role in
    select r.rolname from pg_roles r where r.rolname in ('{app}', '{operator}')
  loop
    execute format('revoke all on all routines in schema ff from %I', v_role);
    execute format('revoke all on all tables in schema ff from %I', v_role);
    execute format('grant usage on schema ff to %I', v_role);
    for v_object in
      select p.oid::regprocedure::text
      from pg_proc p
      where p.pronamespace = 'ff'::regnamespace and not starts_with(p.proname, '_')
        and (v_role = '{operator}' or p.proname <> all ({operator_functions}))
    loop
      execute format('grant execute on routine %s to %I', v_object, v_role);
    end loop;
    for v_object in
      select c.oid::regclass::text
      from pg_class c
      where c.relnamespace = 'ff'::regnamespace and c.relkind = 'v'
        and (v_role = '{operator}' or c.relname = '{installation}')
    loop
      execute format('grant select on %s to %I', v_object, v_role);
    end loop;
  end loop;
end
$$;
"""

# Rights are missing, for example, if a role was created after the library.
_ARE_GRANTS_MISSING = """\
select exists (
  select
  from pg_catalog.pg_roles r
  join pg_catalog.pg_namespace n on n.nspname = 'ff'
  where r.rolname in ('{app}', '{operator}')
    and (
      not pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage')
      or exists (
        select
        from pg_catalog.pg_proc p
        where p.pronamespace = n.oid
          and not starts_with(p.proname, '_')
          and (r.rolname = '{operator}' or p.proname <> all ({operator_functions}))
          and not pg_catalog.has_function_privilege(r.oid, p.oid, 'execute')
      )
      or exists (
        select
        from pg_catalog.pg_class c
        where c.relnamespace = n.oid
          and c.relkind = 'v'
          and (r.rolname = '{operator}' or c.relname = '{installation}')
          and not pg_catalog.has_table_privilege(r.oid, c.oid, 'select')
      )
    )
)
"""


def operator_functions(library: Library) -> frozenset[str]:
    """Return the names of the functions that only the operator role can call."""
    return frozenset(
        file.path.rpartition("/")[2].removesuffix(".sql")
        for file in library.files
        if _FOR_OPERATORS.search(file.text)
    )


def grant_all(library: Library) -> str:
    """Return the statement that sets the rights of the app role and of the operator role.

    It also revokes the right of `public` to call functions.
    """
    return _filled(_GRANTS, library)


def are_missing(library: Library) -> str:
    """Return a query that yields true if the app role or the operator role lacks a right."""
    return _filled(_ARE_GRANTS_MISSING, library)


def _filled(template: str, library: Library) -> str:
    return template.format(
        app=APP_ROLE,
        operator=OPERATOR_ROLE,
        installation=_INSTALLATION,
        operator_functions=text_array(operator_functions(library)),
    )


def text_array(names: Iterable[str]) -> str:
    """Return names as the text of an SQL array."""
    quoted = ", ".join(f"'{name}'" for name in sorted(names))
    return f"array[{quoted}]::text[]"
