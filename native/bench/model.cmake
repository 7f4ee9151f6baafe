set(bench_engine_sources
  bench/model/attention_cases.cpp bench/model/bench_engine.cpp bench/model/machine_limits.cpp
  bench/model/mla_cases.cpp bench/model/model_cases.cpp bench/model/product_cases.cpp
  bench/model/random_model.cpp bench/model/report.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND bench_engine_sources
    bench/model/machine_limits_avx2.cpp bench/model/machine_limits_avx512.cpp)
  set_source_files_properties(bench/model/machine_limits_avx2.cpp
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma")
  set_source_files_properties(bench/model/machine_limits_avx512.cpp
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx512f;-mavx512vnni")
endif()
crossdock_bench(bench_engine SOURCES ${bench_engine_sources} LINKS crossdock_model)
