-- The witness of distributed tables: a submit inserts its executions and then their events. An
-- execution without its event is refused at the end of the transaction.

create function ff_test.witness_pair()
returns trigger
language plpgsql
as $$
begin
  if not exists (
       select from ff.event v
       where v.partition_key = new.partition_key and v.execution_id = new.execution_id
         and v.version = 1) then
    perform ff_test.refuse('a loud transition without its event', new.execution_id, 'submit');
  end if;
  return null;
end;
$$;

create constraint trigger witness_pair after insert on ff.execution
  deferrable initially deferred
  for each row execute function ff_test.witness_pair();
