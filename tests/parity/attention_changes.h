#pragma once

// Attention inputs made out of others: some of their tokens, other bytes where nobody may look.

#include <algorithm>
#include <random>
#include <vector>

#include "parity/attention_cases.h"

namespace smla::attention_cases {

/// The same matrix with the given tokens, in that order.
inline AttentionInputs with_tokens(const AttentionInputs& in, const std::vector<std::int64_t>& tokens) {
  AttentionInputs out = in;
  out.problem.tokens = static_cast<std::int64_t>(tokens.size());
  const auto q_bytes = static_cast<std::ptrdiff_t>(in.q_stride * size_of(in.problem.q));
  out.q.clear();
  for (const std::int64_t t : tokens)
    out.q.insert(out.q.end(), in.q.begin() + t * q_bytes, in.q.begin() + (t + 1) * q_bytes);
  for (std::size_t i = 0; i < in.scopes.size(); ++i) {
    const ScopeInputs& from = in.scopes[i];
    ScopeInputs& to = out.scopes[i];
    to.indices.clear();
    to.lens.clear();
    for (const std::int64_t t : tokens) {
      to.indices.insert(to.indices.end(), from.indices.begin() + t * from.index_stride,
                        from.indices.begin() + (t + 1) * from.index_stride);
      if (!from.lens.empty()) to.lens.push_back(from.lens[static_cast<std::size_t>(t)]);
    }
  }
  return out;
}

/// Slots that count for a token, in order.
inline std::vector<std::int32_t> list_of(AttentionInputs& in, std::size_t scope, std::int64_t token) {
  ScopeInputs& s = in.scopes[scope];
  std::vector<std::int32_t> list;
  const std::int64_t width = in.problem.scope.at(scope).width;
  for (std::int64_t c = 0; c < width; ++c) {
    if (s.counts(token, c, width) && s.valid(s.index(token, c))) list.push_back(s.index(token, c));
  }
  return list;
}

/// The same tokens with rows of indices of their own.
inline AttentionInputs with_own_lists(AttentionInputs& in) {
  AttentionInputs out = in;
  out.problem.tokens_per_list = 1;
  for (std::size_t i = 0; i < in.scopes.size(); ++i) {
    ScopeInputs& from = in.scopes[i];
    ScopeInputs& to = out.scopes[i];
    const std::int64_t width = in.problem.scope.at(i).width;
    to.tokens_per_list = 1;
    to.lens.clear(), to.starts.clear();
    to.indices.assign(static_cast<std::size_t>(in.problem.tokens * to.index_stride), -1);
    for (std::int64_t t = 0; t < in.problem.tokens; ++t) {
      std::int32_t length = 0;
      for (std::int64_t column = 0; column < width; ++column) {
        if (from.counts(t, column, width)) to.index(t, length++) = from.index(t, column);
      }
      to.lens.push_back(length);
    }
  }
  return out;
}

/// The same inputs with every byte of the caches that no list uses set to `fill`; -1: to random bytes.
inline AttentionInputs with_unused_bytes(AttentionInputs& in, int fill) {
  AttentionInputs other = in;
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i < in.scopes.size(); ++i) {
    ScopeInputs& to = other.scopes[i];
    const ScopeInputs& from = in.scopes[i];
    for (std::uint8_t& byte : to.memory)
      byte = static_cast<std::uint8_t>(fill < 0 ? static_cast<int>(random() & 0xFFU) : fill);
    to.cache.base = to.memory.data();
    const RowFormat& f = *to.cache.format;
    const int scale_bytes = f.scale == ScaleKind::kUe8m0 ? f.groups() : f.scale_bytes;
    for (std::int64_t t = 0; t < in.problem.tokens; ++t) {
      for (const std::int32_t slot : list_of(in, i, t)) {
        const std::int64_t block = slot / to.cache.block_size;
        const std::int64_t offset = slot % to.cache.block_size;
        std::copy_n(row_data(from.cache, block, offset), f.data_bytes, row_data(to.cache, block, offset));
        std::copy_n(row_scales(from.cache, block, offset), scale_bytes, row_scales(to.cache, block, offset));
      }
    }
  }
  return other;
}

}  // namespace smla::attention_cases
