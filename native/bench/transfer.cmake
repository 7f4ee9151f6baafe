crossdock_bench(bench_handoff
  SOURCES bench/transfer/handoff_bench.cpp bench/transfer/small_handoffs.cpp
  LINKS crossdock_transfer)
crossdock_bench(bench_handoff_pacing SOURCES bench/transfer/pacing_bench.cpp
  LINKS crossdock_transfer)
