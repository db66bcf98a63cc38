#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "sparsemla/checkpoint.h"

namespace smla::test {

/// Names of a layer's tensors of this dtype.
inline std::set<std::string> names_of(const LayerTensors& tensors, DType dtype) {
  std::set<std::string> names;
  for (const auto& [name, view] : tensors.tensors) {
    if (view.dtype == dtype) names.insert(name);
  }
  return names;
}

/// Calls check(name, kept, loaded) for each weight that was kept in `dtype`; all other tensors must be the same bytes.
template <class Check>
void expect_others_same(const LayerTensors& kept, const LayerTensors& loaded, DType dtype, const Check& check) {
  for (const auto& [name, want] : loaded.tensors) {
    const ConstTensorView& got = kept.tensors.find(name)->second;
    if (got.dtype == dtype) {
      check(name, got, want);
      continue;
    }
    ASSERT_EQ(got.dtype, want.dtype) << name;
    ASSERT_EQ(std::memcmp(got.data, want.data, static_cast<std::size_t>(want.numel() * size_of(want.dtype))), 0)
        << name;
  }
}

}  // namespace smla::test
