-- Read how many partitions exist.
select m.value::integer as partitions from ff.meta m where m.name = 'partitions'
