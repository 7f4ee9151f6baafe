crossdock_test(transfer_spans_test SOURCES tests/transfer/spans_test.cpp LINKS crossdock_transfer)
crossdock_test(transfer_data_path_test SOURCES tests/transfer/data_path_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_descriptor_test SOURCES tests/transfer/descriptor_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_loopback_test SOURCES tests/transfer/loopback_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_liveness_test SOURCES tests/transfer/liveness_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_links_test SOURCES tests/transfer/links_test.cpp LINKS crossdock_transfer)
crossdock_test(transfer_ucx_lanes_test SOURCES tests/transfer/ucx_lanes_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_thread_test SOURCES tests/transfer/transfer_thread_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_ucx_transport_test SOURCES tests/transfer/ucx_transport_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_processes_test
  SOURCES tests/transfer/processes_test.cpp tests/transfer/peer_process.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_descriptor_fuzz SOURCES fuzz/endpoint_descriptor.cpp
  LINKS crossdock_transfer)
