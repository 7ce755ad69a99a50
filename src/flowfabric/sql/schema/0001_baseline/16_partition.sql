-- Partitions. Each has one row, so that one query can look into all of them.

create table ff.partition (
  partition_key smallint primary key
);

insert into ff.partition (partition_key) values (0);
