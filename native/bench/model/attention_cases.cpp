// Paged attention of one decode row over a KV cache that is larger than the processor's.
#include <cassert>
#include <cmath>
#include <cstring>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/model/kv_convert.h"
#include "report.h"

namespace crossdock::bench {
namespace {

constexpr uint32_t kTokens = 8192, kBlocks = kTokens / kBlockTokens;
constexpr uint32_t kGroupHeads = 3;
constexpr DType kDtypes[] = {DType::kF32, DType::kBf16, DType::kFp8E4m3, DType::kFp8E5m2};

// The shape of SmolLM2-135M's attention at its full context: 377 MB of KV in f32, 189 MB in bf16.
KvLayout layout_of(DType dtype) {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  layout.dtype = dtype;
  return layout;
}

// A slab with small, finite elements, resident, and the memory of a step over it.
struct DecodeRow {
  DecodeRow(const kernels::Kernels& kernels_, ThreadPool& pool_, DType dtype)
      : kernels(kernels_), pool(pool_), layout(layout_of(dtype)) {
    auto memory = PageBuffer::allocate(kBlocks * layout.stride_bytes());
    assert(memory.ok());
    slab = std::move(memory).value();
    std::memset(slab.data(), 0x3c, slab.size());
    for (uint32_t i = 0; i < kBlocks; ++i) table.push_back(i * 37 % kBlocks);  // scattered
    q.assign(kGroupHeads * layout.num_kv_heads * layout.head_dim, 0.5f);
    state_floats = kernels::attention_state_floats(kGroupHeads, layout.head_dim);
    states.resize(kTokens / kernels::kRunSlots * layout.num_kv_heads * state_floats);
    scratch.assign(pool.num_threads(), std::vector<float>(kernels::attention_scratch_floats(
                                           kGroupHeads, layout.head_dim, layout.head_dim)));
  }

  // All layers, each cut over the sequence as the executor cuts it.
  void run() {
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      pool.parallel_for(kTokens / kernels::kRunSlots * layout.num_kv_heads, 1,
                        [&](size_t begin, size_t end, uint32_t thread) {
                          for (size_t i = begin; i < end; ++i) run_piece(layer, i, thread);
                        });
    }
  }

  void run_piece(uint32_t layer, size_t piece, uint32_t thread) {
    const auto head = static_cast<uint32_t>(piece % layout.num_kv_heads);
    const auto run = static_cast<uint32_t>(piece / layout.num_kv_heads);
    const kernels::KvHead kv{slab.data(),
                             layout.stride_bytes(),
                             layout.k_offset(layer, head),
                             layout.v_offset(layer, head),
                             element_type(layout.dtype),
                             layout.head_dim,
                             layout.head_dim};
    const kernels::QueryTile tile{q.data() + size_t{head} * kGroupHeads * layout.head_dim,
                                  q.size(),
                                  1,
                                  kGroupHeads,
                                  kTokens - 1,
                                  table.data(),
                                  1.0f / std::sqrt(static_cast<float>(layout.head_dim))};
    kernels::attend(kernels.attention, tile, kv, {run, run + 1},
                    kernels::attention_state(states.data() + piece * state_floats, kGroupHeads,
                                             layout.head_dim),
                    scratch[thread].data());
  }

  const kernels::Kernels& kernels;
  ThreadPool& pool;
  const KvLayout layout;
  PageBuffer slab;
  std::vector<uint32_t> table;
  std::vector<float> q;
  size_t state_floats = 0;
  std::vector<float> states;
  std::vector<std::vector<float>> scratch;
};

}  // namespace

void bench_attention(const Report& report, const Options& options, ThreadPool& pool) {
  const kernels::Kernels& kernels = *kernels::select_kernels(options.kernels).value();
  for (const DType dtype : kDtypes) {
    const std::string case_name = "decode_attention_" + name(dtype);
    if (!report.wants(case_name)) continue;
    DecodeRow row(kernels, pool, dtype);
    row.run();
    // A product of a query with K and one of a probability with V, for every element and head.
    const double elements =
        2.0 * kTokens * row.layout.num_layers * row.layout.num_kv_heads * row.layout.head_dim;
    Work work{.amount = 1, .unit = "tok/s"};
    work.gflop = 2 * elements * kGroupHeads / 1e9;
    work.gbytes = kBlocks * static_cast<double>(row.layout.block_bytes()) / 1e9;
    report.measure(case_name, work, [&] { row.run(); });
  }
}

}  // namespace crossdock::bench
