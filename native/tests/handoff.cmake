crossdock_test(handoff_envelope_test SOURCES tests/handoff/envelope_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_messages_test SOURCES tests/handoff/messages_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_outcomes_test SOURCES tests/handoff/outcomes_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_receiver_test SOURCES tests/handoff/receiver_test.cpp
  LINKS crossdock_handoff)
crossdock_test(handoff_sender_test SOURCES tests/handoff/sender_test.cpp LINKS crossdock_handoff)
crossdock_test(handoff_world_test
  SOURCES tests/handoff/mutants.cpp tests/handoff/search.cpp tests/handoff/world.cpp
          tests/handoff/world_actions.cpp
          tests/handoff/world_checks.cpp tests/handoff/world_moves.cpp tests/handoff/worlds.cpp
          tests/handoff/world_test.cpp
  LINKS crossdock_handoff PkgConfig::XXHASH)
crossdock_test(handoff_messages_fuzz SOURCES fuzz/handoff_messages.cpp LINKS crossdock_handoff)
