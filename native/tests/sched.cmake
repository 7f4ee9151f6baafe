crossdock_test(sched_scheduler_test
  SOURCES tests/sched/scheduler_test.cpp
  LINKS crossdock_sched)
