-- Check the arguments of a new approval request. Return the first problem as an array of two texts,
-- the field and what is wrong with it. Return null if there is no problem.
drop function if exists ff._approval_problem;
create function ff._approval_problem(
  p_approval_id      uuid,
  p_waitpoint_ids    uuid[],
  p_approvers        text[],
  p_question         text,
  p_details          bytea,
  p_details_encoding text,
  p_need             integer,
  p_deny             integer
)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when p_approval_id is null or ff._is_nil_id(p_approval_id)
      then array['approval_id', 'must be an id that the caller has minted']
    when coalesce(cardinality(p_approvers), 0) not between 1 and 64 or array_ndims(p_approvers) > 1
      then array['approvers', 'must be 1 to 64 names']
    when exists (select from unnest(p_approvers) u(name)
                 where ff._signal_name_problem(u.name) is not null)
      then array['approvers', 'must be 1 to 256 bytes each, without control characters']
    when (select count(distinct u.name) from unnest(p_approvers) u(name)) < cardinality(p_approvers)
      then array['approvers', 'must be different names']
    when cardinality(p_waitpoint_ids) is distinct from cardinality(p_approvers)
      or array_ndims(p_waitpoint_ids) > 1 or array_position(p_waitpoint_ids, null) is not null
      or (select count(distinct u.id) from unnest(p_waitpoint_ids) u(id))
         < cardinality(p_approvers)
      then array['waitpoint_ids', 'must be a minted id for each approver']
    when p_question is null or octet_length(p_question) not between 1 and 1024
      then array['question', 'must be 1 to 1024 bytes']
    when octet_length(p_details) > 65536
      then array['details', 'must be at most 64 KiB; store large data elsewhere']
    when octet_length(p_details_encoding) > 64
      then array['details_encoding', 'must be at most 64 bytes']
    when p_need is null or p_need not between 1 and cardinality(p_approvers)
      then array['need', 'must be from 1 to the number of approvers']
    when p_deny is null or p_deny not between 1 and cardinality(p_approvers)
      then array['deny', 'must be from 1 to the number of approvers']
    when p_need + p_deny > cardinality(p_approvers) + 1
      then array['deny', format(
        'must be at most %s: otherwise all could answer without a decision',
        cardinality(p_approvers) - p_need + 1)]
  end;
end;
$$;
