if(CROSSDOCK_TESTS)
  add_library(crossdock_model_testing STATIC
    tests/model/naive_decoder.cpp tests/model/stored_checkpoint.cpp tests/model/tiny_decoder.cpp)
  target_link_libraries(crossdock_model_testing PUBLIC crossdock_model)
endif()
crossdock_test(model_allocation_test
  SOURCES tests/model/allocation_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_checkpoint_test
  SOURCES tests/model/checkpoint_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_cpu_executor_test
  SOURCES tests/model/cpu_executor_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_config_test
  SOURCES tests/model/model_config_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_parts_test
  SOURCES tests/model/parts_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_sampler_test SOURCES tests/model/sampler_test.cpp LINKS crossdock_model)
crossdock_test(model_weights_cache_test
  SOURCES tests/model/weights_cache_test.cpp LINKS crossdock_model_testing)
crossdock_test(model_weights_test
  SOURCES tests/model/weights_test.cpp LINKS crossdock_model_testing)
if(CROSSDOCK_TESTS)
  target_include_directories(model_weights_cache_test PRIVATE src/model)
  target_include_directories(model_weights_test PRIVATE src/model)
  target_include_directories(model_parts_test PRIVATE src/model)
  target_include_directories(model_sampler_test PRIVATE src/model)
endif()
crossdock_test(model_kv_convert_test SOURCES tests/model/kv_convert_test.cpp LINKS crossdock_model)
