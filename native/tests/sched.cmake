crossdock_test(sched_scheduler_test
  SOURCES tests/sched/scheduler_test.cpp tests/sched/scheduler_events_test.cpp
  LINKS crossdock_sched)
crossdock_test(sched_scheduler_random_test
  SOURCES tests/sched/scheduler_random_test.cpp tests/sched/scheduler_world.cpp
  LINKS crossdock_sched)
crossdock_test(sched_scheduler_small_worlds_test
  SOURCES tests/sched/scheduler_small_worlds_test.cpp tests/sched/scheduler_world.cpp
  LINKS crossdock_sched)
crossdock_test(sched_scheduler_allocation_test
  SOURCES tests/sched/scheduler_allocation_test.cpp
  LINKS crossdock_sched)
crossdock_test(sched_scheduler_golden_test
  SOURCES tests/sched/scheduler_golden_test.cpp
  LINKS crossdock_sched)
crossdock_test(sched_step_time_fit_test
  SOURCES tests/sched/step_time_fit_test.cpp
  LINKS crossdock_sched)
if(CROSSDOCK_TESTS)
  target_compile_definitions(sched_scheduler_golden_test
    PRIVATE GOLDEN_SCRIPTS="${PROJECT_SOURCE_DIR}/tests/golden/scheduler")
endif()
