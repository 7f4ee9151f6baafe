crossdock_test(transfer_ucx_transport_test SOURCES tests/transfer/ucx_transport_test.cpp
  LINKS crossdock_transfer)
