if(CROSSDOCK_TESTS)
  add_library(crossdock_model_testing STATIC tests/model/tiny_llama.cpp)
  target_link_libraries(crossdock_model_testing PUBLIC crossdock_model)
endif()
crossdock_test(model_allocation_test
  SOURCES tests/model/allocation_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_checkpoint_test
  SOURCES tests/model/checkpoint_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_cpu_executor_test
  SOURCES tests/model/cpu_executor_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_sampler_test SOURCES tests/model/sampler_test.cpp LINKS crossdock_model)
if(CROSSDOCK_TESTS)
  target_include_directories(model_sampler_test PRIVATE src/model)
endif()
crossdock_test(model_kv_convert_test SOURCES tests/model/kv_convert_test.cpp LINKS crossdock_model)
