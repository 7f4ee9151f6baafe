if(NOT TARGET crossdock_sim_world)
  return()
endif()
crossdock_test(sim_fiber_test SOURCES tests/sim/fiber_test.cpp LINKS crossdock_sim_world)
crossdock_test(sim_world_test SOURCES tests/sim/fleet.cpp tests/sim/world_test.cpp
               LINKS crossdock_sim_world)
crossdock_test(sim_soak_test SOURCES tests/sim/fleet.cpp tests/sim/soak_test.cpp
               LINKS crossdock_sim_world)
