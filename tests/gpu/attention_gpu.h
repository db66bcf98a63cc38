#pragma once

// What tests of sparse attention on a GPU share: the ways to run a call, and how every way is held against `_ref`.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "gpu/gpu_run.h"
#include "ops/attention/attention_split.h"
#include "parity/attention_changes.h"
#include "parity/attention_compare.h"

namespace smla {

using namespace attention_cases;

class AttentionGpu : public test::GpuTest {};

namespace attention_gpu {

/// One way to run a call.
struct Way {
  std::string implementation = "cuda";
  bool deterministic = false;
  std::size_t shared = 0;  ///< what a block may have; 0: what the GPU grants

  friend std::ostream& operator<<(std::ostream& out, const Way& w) {
    out << w.implementation << (w.deterministic ? ", deterministic" : "");
    if (w.shared > 0) out << ", " << w.shared << " bytes of shared memory";
    return out;
  }
};

class SharedLimit {
 public:
  explicit SharedLimit(std::size_t bytes) { device::limit_shared_bytes(bytes); }
  ~SharedLimit() { device::limit_shared_bytes(0); }
  SharedLimit(const SharedLimit&) = delete;
  SharedLimit& operator=(const SharedLimit&) = delete;
};

/// Why an implementation does not take a problem; empty when it does.
inline std::string refusal(const SparseAttention::Problem& p, const std::string& implementation) {
  for (const Candidate& x : explain<SparseAttention>(p, {.device = DeviceKind::kCuda})) {
    if (x.name == implementation) return x.refusal;
  }
  return "no such implementation";
}

inline void run_way(const SparseAttention::Problem& problem, const SparseAttention::Args& args, const Way& way) {
  const SharedLimit limit(way.shared);
  test::run_on_gpu<SparseAttention>(problem, args, way.implementation, way.deterministic);
}

inline AttentionOutputs run_device(AttentionInputs& in, const Way& way) {
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  run_way(in.problem, args, way);
  return out;
}

/// All that take a problem: every implementation, whole and in fixed parts where it has parts, and the portable
/// tensor-core kernel with every tile that the GPU can hold.
inline std::vector<Way> ways_of(const SparseAttention::Problem& p) {
  std::vector<Way> ways;
  for (const std::string& implementation : test::gpu_implementations<SparseAttention>(p)) {
    ways.push_back({.implementation = implementation});
    if (implementation == "cuda_simt") continue;  // it has no parts
    ways.push_back({.implementation = implementation, .deterministic = true});
    if (implementation != "cuda") continue;
    const std::size_t granted = device::current_gpu().shared_bytes;
    const std::int64_t heads = p.heads * p.tokens_per_list;  // where they are packed
    std::set<int> tiles{attention_tile(heads, key_bytes(p), granted)};
    for (const AttentionTile& tile : kAttentionTiles) {
      const auto bytes = static_cast<std::size_t>(tile.shared_bytes(key_bytes(p)));
      if (bytes <= granted && tiles.insert(attention_tile(heads, key_bytes(p), bytes)).second)
        ways.push_back({.shared = bytes});
    }
  }
  // What takes a problem whole may refuse it in fixed parts.
  std::erase_if(ways, [&](const Way& way) {
    const std::vector<std::string> names = test::gpu_implementations<SparseAttention>(p, way.deterministic);
    return std::ranges::find(names, way.implementation) == names.end();
  });
  return ways;
}

/// Multiplies every row that a list names by 2^shift.
inline void shift_rows(ScopeInputs& s, int shift) {
  const RowFormat& f = *s.cache.format;
  std::set<std::int32_t> named(s.indices.begin(), s.indices.end());
  for (const std::int32_t slot : named) {
    if (!s.valid(slot)) continue;
    const std::int64_t row = slot % s.cache.block_size;
    std::uint8_t* block = s.memory.data() + slot / s.cache.block_size * s.cache.block_stride_bytes;
    const auto shift_bf16 = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t d = first; d < last; ++d) {
        BF16 v;
        std::uint8_t* at = block + row * f.data_bytes + 2 * d;
        std::memcpy(&v, at, sizeof v);
        v = to_bf16(std::ldexp(to_float(v), shift));
        std::memcpy(at, &v, sizeof v);
      }
    };
    if (f.nope == Element::kBF16) {
      shift_bf16(0, f.dim);
    } else {
      std::uint8_t* scales = block + s.cache.block_size * f.data_bytes + row * f.scale_bytes;
      for (int g = 0; g < f.nope_dim / f.group; ++g) scales[g] = static_cast<std::uint8_t>(scales[g] + shift);
      shift_bf16(f.nope_dim / 2, f.nope_dim / 2 + f.rope_dim());
    }
  }
}

/// Of fp32 outputs: tensor cores have weights in half precision.
inline double bound_of(const Way& way) { return way.implementation == "cuda_simt" ? 1e-5 : 5e-4; }

/// Every way against `_ref`; `ran` counts the runs of each implementation.
inline void check(AttentionInputs& in, std::map<std::string, int>& ran) {
  const AttentionOutputs want = attention_cases::run(in, "ref", 1);
  const std::vector<Way> ways = ways_of(in.problem);
  EXPECT_FALSE(ways.empty());
  for (const Way& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    expect_parity(want, run_device(in, way), bound_of(way));
    ++ran[way.implementation];
  }
}

/// Every case, every way; each implementation that takes the op's typical problem must have run.
inline void check(const std::vector<AttentionCase>& cases) {
  std::map<std::string, int> ran;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionInputs in = make_inputs(c);
    check(in, ran);
    if (testing::Test::HasFailure()) return;
  }
  const SparseAttention::Problem typical = OpDescription<SparseAttention>::typical();
  for (const std::string& name : test::gpu_implementations<SparseAttention>(typical)) EXPECT_GT(ran[name], 0) << name;
  for (const auto& [name, n] : ran) std::cout << name << ": " << n << " runs\n";
}

inline void expect_same_bits(const AttentionOutputs& want, const AttentionOutputs& got) {
  ASSERT_EQ(want.o, got.o);
  ASSERT_EQ(0, std::memcmp(want.lse.data(), got.lse.data(), want.lse.size() * sizeof(float)));
}

/// Token `token` of a call and token `other` of another have the same bits.
inline void expect_row(const AttentionOutputs& all, std::int64_t token, const AttentionOutputs& one,
                       std::int64_t other = 0) {
  const std::int64_t row = all.problem.padded_heads() * all.head_bytes();
  ASSERT_EQ(0, std::memcmp(all.head(token, 0), one.head(other, 0), static_cast<std::size_t>(row))) << "token " << token;
  for (std::int64_t h = 0; h < all.problem.heads; ++h) {
    const float want = all.lse_of(token, h);
    const float got = one.lse_of(other, h);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(want), std::bit_cast<std::uint32_t>(got))
        << "lse of token " << token << " head " << h << ": " << want << " and " << got;
  }
}

}  // namespace attention_gpu
}  // namespace smla
