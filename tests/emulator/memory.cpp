// Loads, stores, atomics, copies that are waited for, barriers in shared memory, addresses.
#include "instruction_kinds.h"

namespace emulator {

namespace {

// --- barriers in shared memory: 20 bits of arrivals to come, 20 of arrivals a phase, 23 of bytes to come (signed, as
// bytes may arrive before they are expected), the phase in the upper bit

constexpr std::uint64_t kArrivals = (1U << 20) - 1;
constexpr std::uint64_t kMovedBytes = (1U << 23) - 1;

/// Changes a barrier's arrivals and bytes to come, and ends its phase where none are left.
void change(Warp& w, std::byte* barrier, std::uint64_t arrivals, std::uint64_t bytes) {
  std::uint64_t state = 0;
  std::memcpy(&state, barrier, 8);
  const std::uint64_t count = state >> 20 & kArrivals;
  if (count == 0) throw Error("arrival at an mbarrier that was not initialised");
  std::uint64_t pending = ((state & kArrivals) + arrivals) & kArrivals;
  const std::uint64_t moved = ((state >> 40 & kMovedBytes) + bytes) & kMovedBytes;
  std::uint64_t phase = state >> 63;
  if (pending == 0 && moved == 0) pending = count, phase ^= 1;
  state = pending | count << 20 | moved << 40 | phase << 63;
  std::memcpy(barrier, &state, 8);
  ++w.block->cluster->progress;
}

template <class T>
void run_load(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const int all = static_cast<int>(sizeof(T) * i.d.size());
  each_lane(lanes, [&](int l) {
    const std::byte* from = host_address(w, i, i.s[0], l, all);
    for (std::size_t n = 0; n < i.d.size(); ++n) {
      T value;
      std::memcpy(&value, from + n * sizeof(T), sizeof(T));
      if (i.d[n].absent) continue;
      if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        set_number(w, i.d[n], l, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
      } else {
        set_number(w, i.d[n], l, packed<T>(value));
      }
    }
  });
}
template <class T>
void run_store(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::size_t count = i.s.size() - 1;
  each_lane(lanes, [&](int l) {
    std::byte* to = host_address(w, i, i.s[0], l, static_cast<int>(sizeof(T) * count));
    for (std::size_t n = 0; n < count; ++n) {
      const std::uint64_t bits = number(w, i.s[n + 1], l);
      std::memcpy(to + n * sizeof(T), &bits, sizeof(T));
    }
  });
  ++w.block->cluster->progress;
}

/// A store that an mbarrier of the same block counts; made at once.
template <class T>
void run_counted_store(Warp& w, const Instruction& i, std::uint32_t lanes) {
  Instruction values = i;
  values.s.pop_back();
  run_store<T>(w, values, lanes);
  each_lane(lanes, [&](int l) {
    change(w, host_address(w, i, i.s.back(), l, 8), 0, ~std::uint64_t{sizeof(T) * (i.s.size() - 2)} + 1);
  });
}

template <class T>
void run_atomic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    auto* at = reinterpret_cast<T*>(host_address(w, i, i.s[0], l, sizeof(T)));
    const T b = unpacked<T>(static_cast<Word<T>>(number(w, i.s[1], l)));
    const T c = i.s.size() > 2 ? unpacked<T>(static_cast<Word<T>>(number(w, i.s[2], l))) : T{};
    std::atomic_ref<T> cell(*at);
    T before = cell.load();
    for (;;) {
      T after = before;
      if (i.mode == kAtomAdd) after = wrapped_add(before, b);
      if (i.mode == kAtomMin) after = less_of(before, b);
      if (i.mode == kAtomMax) after = greater_of(before, b);
      if (i.mode == kAtomExch) after = b;
      if (i.mode == kAtomCas) after = before == b ? c : before;
      if constexpr (!kFloat<T>) {
        if (i.mode == kAtomAnd) after = static_cast<T>(before & b);
        if (i.mode == kAtomOr) after = static_cast<T>(before | b);
        if (i.mode == kAtomXor) after = static_cast<T>(before ^ b);
        if (i.mode == kAtomInc) after = before >= b ? T{0} : static_cast<T>(before + 1);
        if (i.mode == kAtomDec) after = before == 0 || before > b ? b : static_cast<T>(before - 1);
      }
      if (cell.compare_exchange_weak(before, after)) break;
    }
    if (!i.d.empty() && !i.d[0].absent) set_number(w, i.d[0], l, packed<T>(before));
  });
  ++w.block->cluster->progress;
}

void run_copy(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const auto size = static_cast<int>(number(w, i.s[2], l));
    const int source =
        i.s.size() > 3
            ? static_cast<int>(std::min<std::uint64_t>(number(w, i.s[3], l), static_cast<std::uint64_t>(size)))
            : size;
    Instruction part = i;
    part.space = Space::kGlobal;
    const std::byte* from = source > 0 ? host_address(w, part, i.s[1], l, source) : nullptr;
    std::byte* to = shared_address(w, number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset), size);
    w.copies.push_back({l, w.committed_copies[l], to, from, size, source});
  });
}
constexpr int kBulkUnit = 16;  ///< bytes of which a bulk copy is a multiple, and to which it is aligned

/// A bulk copy: made at once, as hardware may do.
void run_bulk_copy(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const auto size = static_cast<int>(number(w, i.s[2], l));
    if (size % kBulkUnit != 0) throw Error("a bulk copy of " + std::to_string(size) + " bytes");
    Instruction part = i;
    part.space = Space::kGlobal;
    const auto in_shared = [&](const Operand& o, int past, int bytes) {
      return shared_address(w, number(w, o, l) + static_cast<std::uint64_t>(o.offset + past), bytes);
    };
    for (int past = 0; past < size; past += kBulkUnit) {
      Operand from = i.s[1];
      from.offset += past;
      std::memcpy(in_shared(i.s[0], past, kBulkUnit), host_address(w, part, from, l, kBulkUnit), kBulkUnit);
    }
    change(w, in_shared(i.s[3], 0, 8), 0, ~static_cast<std::uint64_t>(size) + 1);
  });
}
void run_copy_commit(Warp& w, const Instruction&, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) { ++w.committed_copies[l]; });
}
void run_copy_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint32_t running = i.mode == 1 ? 0 : static_cast<std::uint32_t>(number(w, i.s[0], l));
    const std::uint32_t done = w.committed_copies[l];
    w.copy_now(1U << l, i.mode == 1 ? done + 1 : done > running ? done - running : 0);
  });
}
void run_copy_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    w.arrivals.push_back(
        {l, static_cast<std::uint32_t>(number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset))});
  });
}

void run_mbarrier_init(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint64_t count = number(w, i.s[1], l) & kArrivals;
    const std::uint64_t state = count | count << 20;
    std::memcpy(host_address(w, i, i.s[0], l, 8), &state, 8);
  });
}
void run_mbarrier_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) { arrive(w, host_address(w, i, i.s[0], l, 8)); });
}
void run_mbarrier_expect(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes,
            [&](int l) { change(w, host_address(w, i, i.s[0], l, 8), ~std::uint64_t{0}, number(w, i.s[1], l)); });
}
void run_try_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint32_t out = 0;
  each_lane(lanes, [&](int l) {
    std::uint64_t state = 0;
    std::memcpy(&state, host_address(w, i, i.s[0], l, 8), 8);
    const bool over = (state >> 63) != (number(w, i.s[1], l) & 1);
    out |= static_cast<std::uint32_t>(over) << l;
  });
  set_predicate(w, i.d[0], lanes, out);
  w.try_failed = (out & lanes) != lanes;
}

void run_mapa(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint64_t at = number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset);
    set_number(w, i.d[0], l, (at & 0xFF'FFFF) | (number(w, i.s[1], l) + 1) << 24);
  });
}
/// A pointer of one space as one of another: 0 to and 1 from generic shared ones.
void run_cvta(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto base = reinterpret_cast<std::uint64_t>(w.block->shared);
  each_lane(lanes, [&](int l) {
    const std::uint64_t at = number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset);
    set_number(w, i.d[0], l, i.space != Space::kShared ? at : i.mode == 0 ? at - base : at + base);
  });
}

/// A policy for lines of L2, which there is none of here.
void run_create_policy(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, 0); });
}

void decode_cp(Instruction& i, const Name& name) {
  if (name.at(1) != "async") unknown();
  if (has(name, "bulk")) {
    if (!has(name, "mbarrier::complete_tx::bytes") || !has(name, "global")) unknown();
    i.run = run_bulk_copy;
    return;
  }
  if (has(name, "mbarrier")) {
    if (!has(name, "noinc")) unknown();
    i.run = run_copy_arrive;
  } else if (has(name, "commit_group")) {
    i.run = run_copy_commit;
  } else if (has(name, "wait_group") || has(name, "wait_all")) {
    i.mode = has(name, "wait_all") ? 1 : 0;
    i.run = run_copy_wait;
  } else {
    i.run = run_copy;
  }
}

Run memory_run(const std::string& base, Type type) {
  if (type == Type::kF16 || type == Type::kBF16) type = Type::kB16;
  if (type == Type::kF16x2 || type == Type::kBF16x2) type = Type::kB32;
  return by_type(type, [&](auto zero) -> Run {
    using T = decltype(zero);
    if (base == "ld") return run_load<T>;
    if (base == "st") return run_store<T>;
    if (base == "st.async") return run_counted_store<T>;
    if constexpr (sizeof(T) >= 4) return run_atomic<T>;
    unknown();
  });
}

}  // namespace

void arrive(Warp& w, std::byte* barrier) { change(w, barrier, ~std::uint64_t{0}, 0); }

bool decode_memory(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  if (base == "ld" || base == "st" || base == "atom" || base == "red") {
    if (base == "atom" || base == "red") i.mode = atomic_of(name);
    i.run = memory_run(base == "st" && has(name, "async") ? "st.async" : base, i.type);
  } else if (base == "cp") {
    decode_cp(i, name);
  } else if (base == "mbarrier") {
    const std::string& what = name.at(1);
    if (what == "init") {
      i.run = run_mbarrier_init;
    } else if (what == "arrive") {
      i.run = has(name, "expect_tx") ? run_mbarrier_expect : run_mbarrier_arrive;
    } else if ((what == "try_wait" || what == "test_wait") && has(name, "parity")) {
      i.run = run_try_wait;
      i.flow = Flow::kTryWait;
    } else {
      unknown();
    }
  } else if (base == "cvta") {
    i.mode = has(name, "to") ? 0 : 1;
    i.run = run_cvta;
  } else if (base == "mapa") {
    i.run = run_mapa;
  } else if (base == "prefetch" || base == "prefetchu" || base == "fence" || base == "membar" ||
             base == "griddepcontrol" || base == "setmaxnreg") {
    i.run = nothing;
  } else if (base == "createpolicy") {
    i.run = run_create_policy;
  } else if (base == "nanosleep") {
    i.run = nothing;
    i.flow = Flow::kYield;
  } else {
    return false;
  }
  return true;
}

}  // namespace emulator
