// The numbers inside tensors that validate reads, op by op.
#include "ops/validate_op.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

// Shapes alone.
template <>
void validate<RmsNorm>(const RmsNorm::Problem& problem, const RmsNorm::Args& args) {
  check_shapes<RmsNorm>(problem, args);
}

// Of rows that are inserted positions and slots, each once.
template <>
void validate<LatentNorms>(const LatentNorms::Problem& problem, const LatentNorms::Args& args) {
  check_shapes<LatentNorms>(problem, args);
  if (!problem.insert) return;
  const LatentNorms::Insert::Args& insert = args.insert;
  check_positions(LatentNorms::kName, insert.positions, problem.rows, insert.cos_sin, "insert.positions");
  const Numbers slots(LatentNorms::kName, "insert.slot_mapping", insert.slot_mapping);
  check_written(slots, slots.rows(), insert.cache.num_slots());
}

// Shapes alone.
template <>
void validate<AddRows>(const AddRows::Problem& problem, const AddRows::Args& args) {
  check_shapes<AddRows>(problem, args);
}

// Shapes alone.
template <>
void validate<QuantizeRows>(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args) {
  check_shapes<QuantizeRows>(problem, args);
}

// Positions and slots, each once.
template <>
void validate<QNormRopeInsert>(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args) {
  constexpr std::string_view op = QNormRopeInsert::kName;
  check_shapes<QNormRopeInsert>(problem, args);
  check_positions(op, args.positions, problem.tokens, args.cos_sin);
  if (problem.format == nullptr) return;
  const Numbers slots(op, "slot_mapping", args.slot_mapping);
  check_written(slots, slots.rows(), args.cache.num_slots());
}

// Slots, each once.
template <>
void validate<InsertRows>(const InsertRows::Problem& problem, const InsertRows::Args& args) {
  check_shapes<InsertRows>(problem, args);
  const Numbers slots(InsertRows::kName, "slot_mapping", args.slot_mapping);
  check_written(slots, slots.rows(), args.cache.num_slots());
}

// Positions.
template <>
void validate<InverseRope>(const InverseRope::Problem& problem, const InverseRope::Args& args) {
  check_shapes<InverseRope>(problem, args);
  check_positions(InverseRope::kName, args.positions, problem.tokens, args.cos_sin);
}

// Positions.
template <>
void validate<InverseRopeQuant>(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args) {
  check_shapes<InverseRopeQuant>(problem, args);
  check_positions(InverseRopeQuant::kName, args.positions, problem.tokens, args.cos_sin);
}

}  // namespace smla
