crossdock_bench(bench_scheduler SOURCES bench/sched/bench_scheduler.cpp LINKS crossdock_sched)
