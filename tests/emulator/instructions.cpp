// Which function runs an instruction.
#include "instruction_kinds.h"

namespace emulator {

namespace {

Space space_of(const Name& name) {
  if (has(name, "shared::cluster")) return Space::kSharedCluster;
  if (has(name, "shared") || has(name, "shared::cta")) return Space::kShared;
  if (has(name, "global") || has(name, "const")) return Space::kGlobal;
  if (has(name, "local")) return Space::kLocal;
  if (has(name, "param") || has(name, "param::entry")) return Space::kParam;
  return Space::kGeneric;
}

}  // namespace

void decode(Instruction& i, const std::vector<std::string>& name) {
  const std::string& base = name.front();
  i.flushes = has(name, "ftz");
  i.space = space_of(name);
  i.type = type_of(name.back());
  if (base == "bra") {
    i.flow = Flow::kBranch;
    i.run = nothing;
  } else if (base == "ret" || base == "exit") {
    i.flow = Flow::kExit;
    i.run = nothing;
  } else if (base == "trap") {
    i.run = [](Warp&, const Instruction&, std::uint32_t) { throw Error("trap"); };
  } else if (base == "activemask") {
    i.run = [](Warp& w, const Instruction& in, std::uint32_t lanes) {
      each_lane(lanes, [&](int l) { set_number(w, in.d[0], l, lanes); });
    };
  } else if (!decode_conversion(i, name) && !decode_arithmetic(i, name) && !decode_logic(i, name) &&
             !decode_memory(i, name) && !decode_lanes(i, name)) {
    unknown();
  }
}

}  // namespace emulator
