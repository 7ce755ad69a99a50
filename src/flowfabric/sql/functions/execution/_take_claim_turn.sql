-- Let large claims of one route take turns, for at most 0.5 s.
--
-- Claims at the same time read the same candidates and skip what the others have locked: four
-- together cost more than twice as much as four in turn. A claim that waited in vain, as behind one
-- in a long transaction, goes on without a turn.
drop function if exists ff._take_claim_turn;
create function ff._take_claim_turn(p_partition_key smallint, p_route_id bigint)
returns void
language plpgsql
set lock_timeout = '500ms'
as $$
begin
  perform pg_advisory_xact_lock(hashint8extended(p_route_id, p_partition_key));
exception when lock_not_available then
  null;
end;
$$;
