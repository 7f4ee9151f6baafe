// Which lane one-sided operations take, told from what UCX prints of an endpoint. The texts were
// recorded of endpoints to a listener, with UCX 1.13.1 and a Soft-RoCE device, with more spaces.
#include <gtest/gtest.h>

#include "../../src/transfer/ucx_worker.h"

namespace crossdock {
namespace {

const std::string kRc = R"(#
# UCP endpoint
#
#   peer: <no debug data>
#   lane[0]: cm tcp
#   lane[1]:  2:rc_verbs/rxe0:1.0 md[2] -> md[2]/ib/sysdev[255] rma_bw#0 am am_bw#0
#   lane[2]:  3:ud_verbs/rxe0:1.0 md[2] -> md[2]/ib/sysdev[255] keepalive
#
#   am_send: 0..<egr/short>..72..<egr/bcopy>..215159..<rndv>..(inf)
#   put[1]: 0..<short>..81..<bcopy>..16384..<zcopy>..(inf)
#   get[1]: 0..<bcopy>..945..<zcopy>..(inf)
#
#   rma_bw: mds [2] rndv_rkey_size 18
#
)";

const std::string kTcp = R"(#
# UCP endpoint
#
#   peer: <no debug data>
#   lane[0]: cm tcp
#   lane[1]:  1:tcp/veth0.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0 am am_bw#0 wireup
#
#   am_send: 0..<egr/short>..8185..<egr/zcopy>..8192..<rndv>..(inf)
#
#   rma_bw: mds [1] rndv_rkey_size 10
#
)";

// The device carries messages, and not by rc; what is one-sided goes over tcp.
const std::string kUdAndTcp = R"(#
# UCP endpoint
#
#   peer: <no debug data>
#   lane[0]: cm tcp
#   lane[1]:  2:ud_verbs/rxe0:1.0 md[2] -> md[2]/ib/sysdev[255] am am_bw#0 keepalive
#   lane[2]:  1:tcp/veth0.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0 wireup
#
#   am_send: 0..<egr/short>..81..<egr/bcopy>..114818..<rndv>..(inf)
#
#   rma_bw: mds [1] rndv_rkey_size 10
#
)";

const std::string kNotConnected = R"(#
# UCP endpoint
#
#   peer: <no debug data>
#   lane[0]: cm tcp
#
#
#   rma_bw: mds rndv_rkey_size 9
#
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(WritesByRc, WherePutsTakeALaneOfRc) {
  EXPECT_TRUE(writes_by_rc(kRc));
  const std::string two_rails =
      replaced(replaced(kRc, "3:ud_verbs/rxe0:1.0", "6:rc_mlx5/mlx5_1:1.0"), "get[1]",
               "put[2]: 0..<short>..81..<bcopy>..(inf)\n# get[1]");
  EXPECT_TRUE(writes_by_rc(two_rails));
}

TEST(WritesByRc, NotWhereTheyTakeAnother) {
  EXPECT_FALSE(writes_by_rc(kTcp));
  EXPECT_FALSE(writes_by_rc(kUdAndTcp));
  const std::string messages_by_rc = replaced(kUdAndTcp, "ud_verbs", "rc_verbs");
  EXPECT_FALSE(writes_by_rc(messages_by_rc));
  EXPECT_FALSE(writes_by_rc(replaced(kRc, "put[1]", "put[2]")));
}

TEST(WritesByRc, NotWhereOneOfThemIsAnother) {
  const std::string one_rail = replaced(replaced(kRc, "3:ud_verbs/rxe0:1.0", "3:tcp/veth0.0"),
                                        "get[1]", "put[2]: 0..<bcopy>..(inf)\n# get[1]");
  EXPECT_FALSE(writes_by_rc(one_rail));
}

TEST(WritesByRc, WithoutLinesOfPutsTheLanesForThemDecide) {
  EXPECT_TRUE(writes_by_rc(replaced(replaced(kRc, "put[1]", "was"), "rma_bw#0", "rma#0")));
  EXPECT_FALSE(writes_by_rc(replaced(replaced(kRc, "put[1]", "was"), "rma_bw#0", "")));
}

TEST(WritesByRc, NotWhereNothingIsSaid) {
  EXPECT_FALSE(writes_by_rc(kNotConnected));
  EXPECT_FALSE(writes_by_rc(std::string()));
  EXPECT_FALSE(writes_by_rc(std::string("lane[\nput[x]\nlane[]: rc_ rma")));
}

}  // namespace
}  // namespace crossdock
