crossdock_test(engine_messages_test SOURCES tests/engine/messages_test.cpp LINKS crossdock_engine)
crossdock_test(engine_link_test SOURCES tests/engine/link_test.cpp LINKS crossdock_engine)
crossdock_test(engine_engine_test SOURCES tests/engine/engine_test.cpp
               LINKS crossdock_engine crossdock_model_testing)
crossdock_test(engine_held_reads_test SOURCES tests/engine/held_reads_test.cpp
               LINKS crossdock_engine crossdock_model_testing)
crossdock_test(engine_store_traffic_test SOURCES tests/engine/store_traffic_test.cpp
               LINKS crossdock_engine)
crossdock_test(engine_senders_test SOURCES tests/engine/senders_test.cpp LINKS crossdock_engine)
crossdock_test(engine_mla_prefill_test SOURCES tests/engine/mla_prefill_test.cpp
               LINKS crossdock_engine crossdock_model_testing)
crossdock_test(engine_kv_dtypes_test SOURCES tests/engine/kv_dtypes_test.cpp
               LINKS crossdock_engine crossdock_model_testing)
