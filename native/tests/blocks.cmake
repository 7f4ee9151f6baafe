crossdock_test(blocks_block_pool_test SOURCES tests/blocks/block_pool_test.cpp
                                      LINKS crossdock_blocks)
crossdock_test(blocks_kv_layout_test SOURCES tests/blocks/kv_layout_test.cpp LINKS crossdock_blocks)
crossdock_test(blocks_rank_copies_test SOURCES tests/blocks/rank_copies_test.cpp
                                       LINKS crossdock_blocks)
