set(bench_engine_sources
  bench/model/bench_engine.cpp bench/model/machine_limits.cpp bench/model/random_model.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND bench_engine_sources bench/model/machine_limits_avx2.cpp)
  set_source_files_properties(bench/model/machine_limits_avx2.cpp
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma")
endif()
crossdock_bench(bench_engine SOURCES ${bench_engine_sources} LINKS crossdock_model)
