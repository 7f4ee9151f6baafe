crossdock_bench(bench_prefix SOURCES bench/prefix/bench_prefix.cpp LINKS crossdock_prefix)
