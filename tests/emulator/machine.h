#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "ptx.h"

namespace emulator {

// Blocks and warps as they run. The lanes of a warp that are at the same instruction run it together; a warp whose
// lanes have parted has several groups. Warps of a block take turns, in an order and for times that a seed decides.

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

/// A grid as it is launched.
struct Launch {
  const Kernel* kernel = nullptr;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t cluster = 1;  ///< blocks, along x
  std::size_t dynamic_shared = 0;
  std::vector<std::byte> parameters;
  std::vector<Range> memory;  ///< what kernels may read and write, in order
  std::uint32_t seed = 0;
};

/// Runs a grid to its end. @throws Error for what the kernel does wrong: an address outside of all memory or not
/// aligned, lanes that never meet, warps that all wait.
void run(const Launch& launch);

struct Block;

/// Lanes that are at the same instruction.
struct Group {
  enum State : std::uint8_t { kReady, kYielded, kApart, kAtBarrier, kAtCluster, kAtWarpBarrier } state = kReady;
  std::uint32_t pc = 0;
  std::uint32_t lanes = 0;
  std::uint32_t needed = 0;      ///< of kApart, kAtWarpBarrier: the lanes that must meet
  int barrier = 0;               ///< of kAtBarrier
  std::uint32_t generation = 0;  ///< of that barrier or of the cluster's, on arrival
};

/// A copy that is under way (cp.async).
struct Copy {
  int lane;
  std::uint32_t group;
  std::byte* to;
  const std::byte* from;
  int size;
  int source_size;
};
/// An arrival at a barrier once a lane's copies have been made.
struct CopyArrival {
  int lane;
  std::uint32_t at;
};
/// A warpgroup product that is under way, as far as one warp is concerned.
struct Product {
  const Instruction* instruction;
  std::uint64_t a;
  std::uint64_t b;
  bool add;
  bool registers;  ///< whether a lies in registers
  std::uint32_t group;
  std::array<std::uint32_t, 4 * kLanes> left = {};  ///< the words of a where it lies in registers
};

struct Warp {
  std::byte* registers = nullptr;
  const std::byte* constants = nullptr;
  Block* block = nullptr;
  int number = 0;
  std::uint32_t live = 0;
  std::vector<Group> groups;
  std::vector<Copy> copies;
  std::vector<CopyArrival> arrivals;
  std::uint32_t committed_copies[kLanes] = {};
  std::deque<Product> products;
  std::uint32_t committed_products = 0;
  std::uint32_t cluster_generation = 0;
  bool done = false;
  bool try_failed = false;
  std::uint64_t instructions = 0;
  Range known{0, 0};  ///< memory in which the last address was

  void copy_now(std::uint32_t lanes, std::uint32_t up_to);  ///< copies of groups before `up_to`
  void arrive_now();  ///< of the arrivals some, as chance will have it: a lane's copies do not wait for its neighbours'
};

struct Barrier {
  std::uint32_t arrived = 0;
  std::uint32_t generation = 0;
  bool any = false;  ///< of bar.red.or
  bool all = true;
  bool result_any = false;
  bool result_all = true;
};

struct Cluster;

struct Block {
  const Launch* launch = nullptr;
  Cluster* cluster = nullptr;
  std::uint32_t rank = 0;  ///< in its cluster
  std::uint32_t index[3] = {0, 0, 0};
  std::vector<std::byte> shared_memory;
  std::byte* shared = nullptr;  ///< aligned
  std::size_t shared_bytes = 0;
  std::vector<std::byte> local;
  std::vector<std::byte> registers;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::uint32_t live_threads = 0;
};

struct Cluster {
  std::vector<Block> blocks;
  std::uint32_t arrived = 0;
  std::uint32_t generation = 0;
  std::uint32_t live_threads = 0;
  std::uint64_t progress = 0;  ///< grows with whatever another warp could wait for
  std::minstd_rand random;
};

// Lanes of operands.
template <class T>
using Word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
template <class T>
Word<T>* place(Warp& w, const Operand& o) {
  return reinterpret_cast<Word<T>*>((o.constant ? const_cast<std::byte*>(w.constants) : w.registers) + o.at);
}
template <class T>
T unpacked(Word<T> word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
template <class T>
Word<T> packed(T value) {
  Word<T> word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
/// A number of any width.
inline std::uint64_t number(Warp& w, const Operand& o, int lane) {
  return o.wide ? place<std::uint64_t>(w, o)[lane] : place<std::uint32_t>(w, o)[lane];
}
inline void set_number(Warp& w, const Operand& o, int lane, std::uint64_t value) {
  if (o.wide) {
    place<std::uint64_t>(w, o)[lane] = value;
  } else {
    place<std::uint32_t>(w, o)[lane] = static_cast<std::uint32_t>(value);
  }
}
/// A predicate's lanes.
inline std::uint32_t predicate(Warp& w, const Operand& o) {
  const std::uint32_t word = *place<std::uint32_t>(w, o);
  const std::uint32_t lanes = o.constant ? (word != 0 ? kAll : 0) : word;
  return o.negated ? ~lanes : lanes;
}
inline void set_predicate(Warp& w, const Operand& o, std::uint32_t lanes, std::uint32_t value) {
  if (o.absent) return;
  std::uint32_t& word = *place<std::uint32_t>(w, o);
  word = (word & ~lanes) | (value & lanes);
}
template <class F>
void each_lane(std::uint32_t lanes, const F& f) {
  if (lanes == kAll) {
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) f(std::countr_zero(rest));
  }
}

/// Where an address is on the host. @throws Error for one that the kernel may not use.
std::byte* host_address(Warp& w, const Instruction& i, const Operand& o, int lane, int size);
/// The same for shared memory, of the block or, by the bits that mapa sets, of another in the cluster.
std::byte* shared_address(Warp& w, std::uint64_t at, int size);

/// An fp16 number, out of a table: compilers call a function for each where the processor is not known to convert.
float from_half(std::uint16_t bits);
float from_e4m3(std::uint8_t bits);

// Tensor cores (tensor_cores.cpp).
void run_mma(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_mma_tf32(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_ldmatrix(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_stmatrix(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_wgmma(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_wgmma_commit(Warp& w, const Instruction& i, std::uint32_t lanes);
void run_wgmma_wait(Warp& w, const Instruction& i, std::uint32_t lanes);

/// An arrival at an mbarrier in shared memory.
void arrive(Warp& w, std::byte* barrier);

}  // namespace emulator
