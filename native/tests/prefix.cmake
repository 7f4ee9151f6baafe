crossdock_test(prefix_block_hash_test SOURCES tests/prefix/block_hash_test.cpp
                                      LINKS crossdock_prefix)
crossdock_test(prefix_prefix_index_test SOURCES tests/prefix/prefix_index_test.cpp
                                        LINKS crossdock_prefix)
crossdock_test(prefix_prefix_tree_test
  SOURCES tests/prefix/prefix_tree_test.cpp tests/prefix/prefix_tree_oracle_test.cpp
  LINKS crossdock_prefix)
if(CROSSDOCK_TESTS)
  target_compile_definitions(prefix_block_hash_test
    PRIVATE BLOCK_HASH_VECTORS="${PROJECT_SOURCE_DIR}/docs/block-hash.md")
endif()
