crossdock_test(tiers_block_store_test SOURCES tests/tiers/block_store_test.cpp
  LINKS crossdock_tiers)
crossdock_test(tiers_block_store_model_test SOURCES tests/tiers/block_store_model_test.cpp
  LINKS crossdock_tiers)
