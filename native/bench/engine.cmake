crossdock_bench(bench_handoff_overlap SOURCES bench/engine/overlap_bench.cpp
  LINKS crossdock_engine)
