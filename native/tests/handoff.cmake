crossdock_test(handoff_messages_test SOURCES tests/handoff/messages_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_receiver_test SOURCES tests/handoff/receiver_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_sender_test SOURCES tests/handoff/sender_test.cpp LINKS crossdock_handoff)
crossdock_test(handoff_world_test
  SOURCES tests/handoff/world.cpp tests/handoff/world_moves.cpp tests/handoff/world_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_messages_fuzz SOURCES fuzz/handoff_messages.cpp LINKS crossdock_handoff)
