-- How many partitions there are.
select m.value::integer as partitions from ff.meta m where m.name = 'partitions'
