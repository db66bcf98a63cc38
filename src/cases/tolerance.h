#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/host_tensor.h"
#include "model/json.h"
#include "sparsemla/kv_format.h"

namespace smla {

/// Bounds of a U8 cache compared record by record: scales equal, codes at most `steps` apart, bf16 parts at most `ulp`
/// apart, every other byte equal.
struct RowsTolerance {
  const RowFormat* format = nullptr;
  std::int64_t block_size = 0;
  std::int64_t steps = 0;
  std::int64_t ulp = 0;
  std::optional<std::set<std::int64_t>>
      written{};  ///< slots that the call wrote: all other records equal byte by byte; absent: every slot
};

/// How far a result may be from the expected one; everything that is given must hold, nothing given means equal bytes.
/// Whatever the bound: infinities and NaN match in place, and an all-zero expectation wants all zeros.
struct Tolerance {
  std::optional<double> abs;  ///< with rel: |got - want| <= abs + rel * |want|
  std::optional<double> rel;
  std::optional<double> abs_of_largest;  ///< adds this fraction of the largest finite |want| to `abs`; only in default
                                         ///< bounds, never in a file
  std::optional<double> l2;         ///< |got - want|_2 <= l2 * |want|_2, infinite and NaN elements of want left out
  std::optional<double> cos;        ///< 1 - cosine similarity <= cos
  std::optional<std::int64_t> ulp;  ///< distance in representable values of want's dtype (BF16, F8_E4M3, F32)
  bool set = false;                 ///< rows as sets of integers: -1 ignored, duplicates refused
  std::optional<RowsTolerance> rows;

  bool exact() const { return !abs && !rel && !abs_of_largest && !l2 && !cos && !ulp && !set && !rows; }
};

/// Reads `params.tolerance.<result>`. @throws InvalidArgument for an unknown bound or an impossible value.
Tolerance parse_tolerance(const std::string& where, const JsonValue& value);

/// "l2 0.0022", "abs 0.001 + rel 0.01, ulp 1", "exact": for verdicts.
std::string describe(const Tolerance& tolerance);

/// What a comparison found.
struct Comparison {
  bool pass = true;
  std::string failure;  ///< the first rule that does not hold; empty on a pass
  double worst = 0.0;  ///< the largest |got - want|; for sets the members that differ in the worst row, for records the
                       ///< worst distance
  std::vector<std::int64_t> where;  ///< its index
  std::string detail;               ///< "got 1.5, want 2"
  double l2 = 0.0;                  ///< |got - want|_2 / |want|_2
};

/// Compares a result with the expected tensor. Float results of different dtypes are compared by value unless the bound
/// is exact or ulp.
/// @throws InvalidArgument when a bound makes no sense for the dtype.
Comparison compare(const HostTensor& got, const HostTensor& want, const Tolerance& tolerance);

/// Distance in representable values, +0 and -0 being one; NaN are not handled.
std::int64_t ulp_distance(float a, float b);
std::int64_t ulp_distance(BF16 a, BF16 b);
std::int64_t ulp_distance(E4M3 a, E4M3 b);

}  // namespace smla
