-- Read the clock of the server.
select clock_timestamp() as now
