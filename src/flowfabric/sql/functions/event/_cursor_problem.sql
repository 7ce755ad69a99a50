-- Check the form of the cursor of a subscription. This cursor consists of one cursor for each
-- partition, joined by `/`. Return what is wrong with it, or null. The call does not check whether
-- a cursor has expired.
drop function if exists ff._cursor_problem;
create function ff._cursor_problem(p_cursor text)
returns text
language plpgsql
immutable
as $$
begin
  return case
    when octet_length(p_cursor) > 4194304 then 'must be at most 4 MiB'
    when p_cursor = '' or exists (
        select from string_to_table(p_cursor, '/') c(part)
        where c.part !~ ('^ff2:[0-9]{1,5}:[0-9a-f]{16}:[0-9a-f]{1,16}:[0-9A-F]{8}:[0-9]{1,9}'
                         || ':[0-9]{1,18}:([1-9a-f][0-9a-f]{0,14}(,[1-9a-f][0-9a-f]{0,14})*)?'
                         || ':[0-9]{1,18}:[0-9]{1,18}:[0-9a-f]{0,16}'
                         || ':([0-9]{1,9}[.][0-9]{1,18})?:[0-9a-f]{8}$'))
      then 'is not a cursor of ours; open one with open_cursor' end;
end;
$$;
