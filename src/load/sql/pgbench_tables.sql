-- pgbench's tables as `pgbench -i` makes and fills them (keys after the rows, as there). {scale} is a whole number,
-- {mark} the quoted comment that says they are ours. Sent as one string, this is one transaction.
drop table if exists public.pgbench_accounts, public.pgbench_branches, public.pgbench_tellers, public.pgbench_history;
create table public.pgbench_history
    (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
create table public.pgbench_tellers (tid int not null, bid int, tbalance int, filler char(84)) with (fillfactor = 100);
create table public.pgbench_accounts (aid int not null, bid int, abalance int, filler char(84)) with (fillfactor = 100);
create table public.pgbench_branches (bid int not null, bbalance int, filler char(88)) with (fillfactor = 100);
comment on table public.pgbench_history is {mark};
comment on table public.pgbench_tellers is {mark};
comment on table public.pgbench_accounts is {mark};
comment on table public.pgbench_branches is {mark};
insert into public.pgbench_branches (bid, bbalance) select bid, 0 from generate_series(1, {scale}) as bid;
insert into public.pgbench_tellers (tid, bid, tbalance)
select tid, (tid - 1) / 10 + 1, 0 from generate_series(1, {scale} * 10) as tid;
insert into public.pgbench_accounts (aid, bid, abalance, filler)
select aid, (aid - 1) / 100000 + 1, 0, '' from generate_series(1, {scale} * 100000) as aid;
alter table public.pgbench_branches add primary key (bid);
alter table public.pgbench_tellers add primary key (tid);
alter table public.pgbench_accounts add primary key (aid);
