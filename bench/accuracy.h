#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/device.h"

namespace smla::bench {

/// A random model as small as a test of accuracy allows: rows and heads are V4's (512 numbers, 64 of them rotated;
/// index rows of 128), layers are the first eight of V4-Flash (SWA, SWA, then C4A and C128A in turn).
struct AccuracySizes {
  std::int64_t hidden = 256;      ///< width of hidden states
  std::int64_t heads = 8;         ///< query heads
  std::int64_t o_groups = 2;      ///< groups of the output projection
  std::int64_t lora = 256;        ///< width of the low-rank query, and of a group's low-rank output
  std::int64_t index_heads = 16;  ///< heads of the indexer
  std::int64_t index_topk = 512;  ///< entries that a query of a C4A layer chooses
  std::int64_t vocabulary = 4096;
};

/// What `smla bench accuracy` measures.
struct AccuracyOptions {
  AccuracySizes sizes;
  std::vector<std::int64_t> contexts{8192, 65536};  ///< tokens of a request, the measured ones included
  std::int64_t measured = 512;      ///< its last tokens, which pass through the stack and are compared; 1 or more
  std::vector<std::string> groups;  ///< names of accuracy_groups(); empty: all
  DeviceKind device = DeviceKind::kCpu;
  int threads = 0;
  std::uint64_t seed = 0;  ///< of weights, tokens and hidden states
};

/// Errors are relative l2, |got - want| / |want| over all measured tokens, against float64.
struct AccuracyRow {
  std::string group;              ///< "cache", "index", "weights" or "kernel"
  std::string name;               ///< "fp8_ds_mla", ...
  std::int64_t context = 0;       ///< tokens; of the group kernel 1024 at most, of which 128 at most are measured
  std::array<double, 3> kinds{};  ///< mean over the SWA, C4A and C128A layers: of attention(x), with float64's choice
  double stack = 0;               ///< of the stack's end, with float64's choice of entries
  double own_stack = 0;           ///< the same with the choice of its own indexer
  double entries = 0;             ///< share of the chosen entries that float64 does not choose
  double queries = 0;             ///< share of the queries with any such entry
  double agreement = 0;           ///< share of the tokens whose greedy next token is float64's
  std::string implementations;    ///< of the ops, as LayerPlan::describe
  std::string skipped;            ///< why it was not measured; then there are no numbers
};

/// Names of the groups of rows, in order.
std::vector<std::string_view> accuracy_groups();

/// Measures. `say` hears what is done next; `emit` every row, by context, then group.
/// @throws InvalidArgument for an unknown group, sizes that no layer can have, or a context shorter than `measured`.
void measure_accuracy(const AccuracyOptions& options, const std::function<void(const std::string&)>& say,
                      const std::function<void(const AccuracyRow&)>& emit);

}  // namespace smla::bench
