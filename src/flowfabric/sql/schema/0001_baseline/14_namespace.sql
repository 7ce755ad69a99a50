-- A namespace needs no row of its own: it exists once it is used. A login that is bound to a
-- namespace can use no other.

create table ff.namespace_grant (
  login      name        primary key,
  namespace  text        not null,
  granted_at timestamptz not null,
  granted_by text        not null,
  constraint a_namespace_has_a_name check (
    namespace ~ E'^[^\x01-\x20\x7f]+$' and octet_length(namespace) <= 256)
);
