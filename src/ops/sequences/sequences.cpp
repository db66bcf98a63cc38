#include "core/check.h"
#include "ops/define_op.h"
#include "ops/sequences/implementations.h"

namespace smla {

namespace {

void check_sizes(std::string_view op, const PackSequences::Problem& problem) {
  const auto at_least_0 = [&](std::string_view name, std::int64_t value) {
    check_that(value >= 0, op, name, value, "0 or more");
  };
  at_least_0("requests", problem.requests);
  at_least_0("tokens", problem.tokens);
  at_least_0("max_len", problem.max_len);
  at_least_0("row", problem.row);
  std::int64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(problem.requests, problem.max_len, &bytes) &&
                    !__builtin_mul_overflow(bytes, problem.row, &bytes) &&
                    !__builtin_mul_overflow(bytes, std::int64_t{8}, &bytes);
  check_that(fits, op, "packed",
             std::to_string(problem.requests) + " x " + std::to_string(problem.max_len) + " x " +
                 std::to_string(problem.row) + " elements",
             "a size that 64 bits can address");
}

void check_views(std::string_view op, const PackSequences::Problem& problem, const ConstTensorView& rows,
                 const ConstTensorView& packed, const ConstTensorView& query_start_loc) {
  check_tensor(op, "rows", rows, {problem.tokens, problem.row}, {problem.dtype});
  check_tensor(op, "packed", packed, {problem.requests, problem.max_len, problem.row}, {problem.dtype});
  check_tensor(op, "query_start_loc", query_start_loc, {problem.requests + 1}, {DType::kI32});
}

}  // namespace

template <>
std::span<const Implementation<PackSequences>> OpTable<PackSequences>::implementations() {
  static const Implementation<PackSequences> kTable[] = {
      cuda_row<PackSequences>(), {.name = "ref", .machine = "any CPU", .run = pack_sequences_ref}};
  return kTable;
}

template <>
void OpTable<PackSequences>::check_problem(const PackSequences::Problem& problem) {
  check_sizes(PackSequences::kName, problem);
}

template <>
void OpTable<PackSequences>::check_args(const PackSequences::Problem& problem, const PackSequences::Args& args) {
  check_views(PackSequences::kName, problem, args.rows, args.packed, args.query_start_loc);
}

template <>
std::span<const Implementation<UnpackSequences>> OpTable<UnpackSequences>::implementations() {
  static const Implementation<UnpackSequences> kTable[] = {
      cuda_row<UnpackSequences>(), {.name = "ref", .machine = "any CPU", .run = unpack_sequences_ref}};
  return kTable;
}

template <>
void OpTable<UnpackSequences>::check_problem(const UnpackSequences::Problem& problem) {
  check_sizes(UnpackSequences::kName, problem);
}

template <>
void OpTable<UnpackSequences>::check_args(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args) {
  check_views(UnpackSequences::kName, problem, args.rows, args.packed, args.query_start_loc);
}

SMLA_DEFINE_OP(PackSequences);
SMLA_DEFINE_OP(UnpackSequences);

}  // namespace smla
