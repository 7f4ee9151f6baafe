crossdock_test(transfer_ucx_transport_test SOURCES tests/transfer/ucx_transport_test.cpp
  LINKS crossdock_transfer)
crossdock_test(transfer_processes_test
  SOURCES tests/transfer/processes_test.cpp tests/transfer/peer_process.cpp
  LINKS crossdock_transfer)
