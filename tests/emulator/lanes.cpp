// What lanes, warps and blocks do together.
#include "instruction_kinds.h"

namespace emulator {

namespace {

void run_shfl(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint32_t values[kLanes];
  for (int l = 0; l < kLanes; ++l) values[l] = place<std::uint32_t>(w, i.s[0])[l];
  std::uint32_t inside = 0;
  each_lane(lanes, [&](int l) {
    const auto b = static_cast<int>(number(w, i.s[1], l) & 31);
    const auto c = static_cast<int>(number(w, i.s[2], l));
    const int clamp = c & 31;
    const int segment = c >> 8 & 31;
    const int most = (l & segment) | (clamp & ~segment);
    const int least = l & segment;
    int from = l;
    bool in = true;
    if (i.mode == 0) from = l - b, in = from >= most;
    if (i.mode == 1) from = l + b, in = from <= most;
    if (i.mode == 2) from = l ^ b, in = from <= most;
    if (i.mode == 3) from = least | (b & ~segment), in = from <= most;
    if (!in) from = l;
    if ((lanes >> from & 1) == 0) throw Error("shfl from a lane that does not take part");
    if (!i.d[0].absent) place<std::uint32_t>(w, i.d[0])[l] = values[from];
    inside |= static_cast<std::uint32_t>(in) << l;
  });
  if (i.d.size() > 1) set_predicate(w, i.d[1], lanes, inside);
}
void run_vote(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t votes = predicate(w, i.s[0]) & lanes;
  if (i.mode == 0) {
    each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, votes); });
    return;
  }
  const bool out = i.mode == 1 ? votes != 0 : i.mode == 2 ? votes == lanes : votes == lanes || votes == 0;
  set_predicate(w, i.d[0], lanes, out ? kAll : 0);
}
void run_elect(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t first = lanes & (0 - lanes);
  if (!i.d[0].absent) each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, std::countr_zero(lanes)); });
  set_predicate(w, i.d.at(1), lanes, first);
}
template <class T>
void run_redux(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto* a = place<T>(w, i.s[0]);
  T out = unpacked<T>(a[std::countr_zero(lanes)]);
  each_lane(lanes & (lanes - 1), [&](int l) {
    const T x = unpacked<T>(a[l]);
    switch (i.mode) {
      case kAtomAdd: out = wrapped_add(out, x); break;
      case kAtomMin: out = std::min(out, x); break;
      case kAtomMax: out = std::max(out, x); break;
      case kAtomAnd: out = static_cast<T>(out & x); break;
      case kAtomOr: out = static_cast<T>(out | x); break;
      default: out = static_cast<T>(out ^ x);
    }
  });
  each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, packed<T>(out)); });
}
void run_match(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t values[kLanes];
  each_lane(lanes, [&](int l) { values[l] = number(w, i.s[0], l); });
  each_lane(lanes, [&](int l) {
    std::uint32_t same = 0;
    each_lane(lanes, [&](int other) { same |= static_cast<std::uint32_t>(values[other] == values[l]) << other; });
    set_number(w, i.d[0], l, same);
  });
}

/// Barriers of the block (16 of them) and of the cluster.
void decode_barrier(Instruction& i, const Name& name) {
  if (name.size() > 1 && name[1] == "warp") {
    i.flow = Flow::kWarpBarrier;
    i.members = i.s.at(0);
    i.run = nothing;
    return;
  }
  if (name.size() > 1 && name[1] == "cluster") {
    i.converges = true;
    if (name.at(2) == "wait") {
      i.flow = Flow::kClusterWait;
      i.run = nothing;
    } else {
      i.run = [](Warp& w, const Instruction&, std::uint32_t lanes) {
        Cluster& c = *w.block->cluster;
        w.cluster_generation = c.generation;
        c.arrived += static_cast<std::uint32_t>(std::popcount(lanes));
        if (c.arrived >= c.live_threads) c.arrived = 0, ++c.generation;
        ++c.progress;
      };
    }
    return;
  }
  i.converges = true;
  i.run = nothing;
  if (has(name, "arrive")) unknown();
  i.flow = Flow::kBarrier;
  if (has(name, "red")) {
    i.mode = has(name, "or") ? 1 : has(name, "and") ? 2 : 0;
    if (i.mode == 0) unknown();
    std::swap(i.mode2, i.mode);
    i.run = [](Warp& w, const Instruction& in, std::uint32_t lanes) {
      const Barrier& b = w.block->barriers[number(w, in.s[0], std::countr_zero(lanes)) & 15];
      set_predicate(w, in.d[0], lanes, (in.mode2 == 1 ? b.result_any : b.result_all) ? kAll : 0);
    };
  }
}

}  // namespace

bool decode_lanes(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  i.converges = true;
  if (base == "shfl" || base == "vote" || base == "redux" || base == "match" || base == "elect") {
    i.has_members = true;
    i.members = i.s.back();
    if (base == "shfl") {
      i.mode = has(name, "up") ? 0 : has(name, "down") ? 1 : has(name, "bfly") ? 2 : 3;
      i.run = run_shfl;
    } else if (base == "vote") {
      i.mode = has(name, "ballot") ? 0 : has(name, "any") ? 1 : has(name, "all") ? 2 : 3;
      i.run = run_vote;
    } else if (base == "redux") {
      i.mode = atomic_of(name);
      i.run = i.type == Type::kS32 ? run_redux<std::int32_t> : run_redux<std::uint32_t>;
    } else if (base == "elect") {
      i.run = run_elect;
    } else {
      if (!has(name, "any")) unknown();
      i.run = run_match;
    }
  } else if (base == "bar" || base == "barrier") {
    decode_barrier(i, name);
    if (i.flow == Flow::kWarpBarrier) i.converges = false;
  } else if (base == "ldmatrix") {
    i.run = run_ldmatrix;
    i.mode = has(name, "trans") ? 1 : 0;
  } else if (base == "stmatrix") {
    i.run = run_stmatrix;
    i.mode = has(name, "trans") ? 1 : 0;
  } else if (base == "mma") {
    const bool bf16 = has(name, "bf16");
    const bool tf32 = has(name, "tf32");
    if (!has(name, tf32 ? "m16n8k8" : "m16n8k16") || type_of(name[name.size() - 4]) != Type::kF32 ||
        type_of(name.back()) != Type::kF32)
      unknown();
    i.from = bf16 ? Type::kBF16 : Type::kF16;
    i.run = tf32 ? run_mma_tf32 : run_mma;
  } else if (base == "wgmma") {
    const std::string& what = name.at(1);
    if (what == "fence") {
      i.run = nothing;
    } else if (what == "commit_group") {
      i.run = run_wgmma_commit;
    } else if (what == "wait_group") {
      i.run = run_wgmma_wait;
    } else {
      if (type_of(name.back()) != Type::kF16 && type_of(name.back()) != Type::kBF16 &&
          type_of(name.back()) != Type::kE4M3) {
        unknown();
      }
      i.from = type_of(name.back());
      i.keeps = true;
      i.run = run_wgmma;
    }
  } else {
    i.converges = false;
    return false;
  }
  return true;
}

}  // namespace emulator
