#pragma once

// The case form of an op that has no older one: op = kName, params = the members of Problem, tensors = the members of
// Args (ops/op_description.h).

#include <optional>

#include "cases/replay.h"
#include "core/check.h"
#include "ops/op_descriptions.h"
#include "ops/rule_names.h"
#include "ops/staging.h"

namespace smla::op_case {

/// Reads a Problem: a member that the params lack keeps its default.
struct ReadFields {
  CaseParams params;

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
  template <Rule Value>
  void operator()(const char* name, Value& value) const {
    const std::string text = params.text(name, std::string(rule_name(value)));
    if (!set_rule(value, text)) params.fail(name, "\"" + text + "\"", rule_names<Value>());
  }
};

/// Makes Args from a case. Outputs start as in.<name>_before where the case has it, else poisoned; caches that are
/// written as in.<name>_before.
struct ReadTensors {
  const CaseFile& file;
  CaseParams params;
  ReplayResult& result;

  void in(const char* name, ConstTensorView& view) const { view = file.view(std::string("in.") + name); }
  void out(const char* name, TensorView& view) const;
  void cache(const char* name, PagedCache& cache, CacheAccess access) const;
};

template <class Op>
ReplayResult replay_op(const CaseFile& file, const ReplayOptions& options) {
  typename Op::Problem problem;
  OpDescription<Op>::fields(problem, ReadFields{file.reader()});
  ReplayResult result;
  typename Op::Args args;
  OpDescription<Op>::tensors(args, ReadTensors{file, file.reader(), result});
  const Plan<Op> plan(problem, options.plan);
  run_staged(plan, args, options.plan.device);
  result.implementation = std::string(plan.implementation());
  return result;
}

/// Ops in this form: all but sparse_attention, whose form is older (sparse_attention_case.cpp).
std::span<const ReplayEntry> table();

}  // namespace smla::op_case
