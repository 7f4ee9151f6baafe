crossdock_test(kernels_kernels_test SOURCES tests/kernels/kernels_test.cpp LINKS crossdock_kernels)
crossdock_test(kernels_product_test SOURCES tests/kernels/product_test.cpp LINKS crossdock_kernels)
crossdock_test(kernels_product_pack_test
  SOURCES tests/kernels/product_pack_test.cpp LINKS crossdock_kernels)
crossdock_test(kernels_kv_codec_test
  SOURCES tests/kernels/kv_codec_test.cpp LINKS crossdock_kernels)
crossdock_test(kernels_attention_test
  SOURCES tests/kernels/attention_test.cpp LINKS crossdock_kernels)
