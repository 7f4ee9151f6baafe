crossdock_test(handoff_receiver_test SOURCES tests/handoff/receiver_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_sender_test SOURCES tests/handoff/sender_test.cpp LINKS crossdock_handoff)
