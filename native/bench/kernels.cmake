set(bench_kernels_sources bench/kernels/bench_kernels.cpp bench/model/machine_limits.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # model.cmake says with which instructions.
  list(APPEND bench_kernels_sources
    bench/model/machine_limits_avx2.cpp bench/model/machine_limits_avx512.cpp)
endif()
crossdock_bench(bench_kernels SOURCES ${bench_kernels_sources} LINKS crossdock_kernels)
crossdock_bench(bench_attention SOURCES bench/kernels/bench_attention.cpp LINKS crossdock_kernels)
