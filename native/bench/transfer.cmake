crossdock_bench(bench_handoff SOURCES bench/transfer/handoff_bench.cpp LINKS crossdock_transfer)
