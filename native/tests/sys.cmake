crossdock_test(sys_clock_test SOURCES tests/sys/clock_test.cpp LINKS crossdock_sys)
crossdock_test(sys_spsc_ring_test SOURCES tests/sys/spsc_ring_test.cpp LINKS crossdock_sys)
crossdock_test(sys_shared_memory_test SOURCES tests/sys/shared_memory_test.cpp LINKS crossdock_sys)
crossdock_test(sys_spsc_queue_test SOURCES tests/sys/spsc_queue_test.cpp LINKS crossdock_sys)
crossdock_test(sys_process_test SOURCES tests/sys/process_test.cpp LINKS crossdock_sys)
crossdock_test(sys_thread_pool_test SOURCES tests/sys/thread_pool_test.cpp LINKS crossdock_sys)
crossdock_test(sys_file_cache_test SOURCES tests/sys/file_cache_test.cpp LINKS crossdock_sys)
crossdock_test(sys_scratch_directory_test SOURCES tests/sys/scratch_directory_test.cpp
               LINKS crossdock_sys)
