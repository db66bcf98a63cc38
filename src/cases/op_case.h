#pragma once

// The case form of an op that has no older one: op = kName, params = the members of Problem, tensors = the members of
// Args (ops/fields.h).

#include <optional>

#include "cases/replay.h"
#include "core/check.h"
#include "ops/fields.h"
#include "ops/staging.h"

namespace smla::op_case {

/// The spellings of a scalar in the params.
inline std::string_view text_of(ClampRule rule) { return rule == ClampRule::kAmax ? "amax" : "scale"; }
inline std::string_view text_of(OutputScale scale) { return scale == OutputScale::kF32 ? "f32" : "ue8m0x4"; }

/// Reads a Problem: a member that the params lack keeps its default.
struct ReadFields {
  JsonReader params;

  void operator()(const char* name, std::int64_t& value) const {
    value = params.integer(name, INT64_MIN, INT64_MAX, value);
  }
  void operator()(const char* name, int& value) const {
    value = static_cast<int>(params.integer(name, INT32_MIN, INT32_MAX, value));
  }
  void operator()(const char* name, float& value) const {
    value = static_cast<float>(params.number(name, -3.4e38, 3.4e38, value));
  }
  void operator()(const char* name, bool& value) const { value = params.flag(name, value); }
  void operator()(const char* name, DType& value) const {
    value = dtype_from_name(params.text(name, std::string(name_of(value))));
  }
  void operator()(const char* name, const RowFormat*& value) const {
    if (params.has(name)) value = &row_format(params.text(name));
  }
  void operator()(const char* name, ClampRule& value) const {
    choose(name, value, {ClampRule::kAmax, ClampRule::kScale});
  }
  void operator()(const char* name, OutputScale& value) const {
    choose(name, value, {OutputScale::kF32, OutputScale::kUe8m0x4});
  }

  template <class T>
  void choose(const char* name, T& value, std::initializer_list<T> all) const {
    const std::string text = params.text(name, std::string(text_of(value)));
    std::string known;
    for (const T candidate : all) {
      if (text_of(candidate) == text) {
        value = candidate;
        return;
      }
      known += (known.empty() ? "" : " or ") + std::string(text_of(candidate));
    }
    params.fail(name, "\"" + text + "\"", known);
  }
};

/// Makes Args from a case. Outputs start as in.<name>_before where the case has it, else poisoned; caches that are
/// written as in.<name>_before.
struct ReadTensors {
  const CaseFile& file;
  JsonReader params;
  ReplayResult& result;

  void in(const char* name, ConstTensorView& view) const { view = file.view(std::string("in.") + name); }
  void out(const char* name, TensorView& view) const;
  void cache(const char* name, PagedCache& cache, CacheAccess access) const;
};

template <class Op>
ReplayResult replay_op(const CaseFile& file, const ReplayOptions& options) {
  typename Op::Problem problem;
  fields(problem, ReadFields{file.reader()});
  ReplayResult result;
  typename Op::Args args;
  tensors(args, ReadTensors{file, file.reader(), result});
  const Plan<Op> plan(problem, options.plan);
  run_staged(plan, args, options.plan.device);
  result.implementation = std::string(plan.implementation());
  return result;
}

/// Ops in this form.
std::span<const ReplayEntry> table();

}  // namespace smla::op_case
