// Runs the warps of a grid's blocks. Blocks run one after the other on each of the host's threads, those of a cluster
// together.
#include "machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>

namespace emulator {

namespace {

constexpr int kMostTurns = 20'000;  ///< of all warps without anything that one could wait for

std::string where(const Warp& w, const Group& g) {
  const Kernel& k = *w.block->launch->kernel;
  std::ostringstream out;
  out << "block " << w.block->index[0] << ", warp " << w.number << ", lanes " << std::hex << g.lanes << std::dec;
  if (g.pc < k.code.size()) out << ", line " << k.code[g.pc].line << ": " << k.text[g.pc];
  return out.str();
}

bool inside(const Range& r, std::uintptr_t at, int size) {
  return at >= r.begin && at + static_cast<std::uintptr_t>(size) <= r.end;
}

std::string hex(std::uint64_t x) {
  std::ostringstream out;
  out << "0x" << std::hex << x;
  return out.str();
}

class Turn {
 public:
  explicit Turn(Warp& w) : w_(w), code_(w.block->launch->kernel->code) {}

  /// Runs the warp until it must wait, or for so many instructions.
  void run(int budget) {
    arrive_of_copies();
    while (budget > 0 && !w_.done) {
      Group* g = next();
      if (g == nullptr) return;
      budget = run_group(*g, budget);
      w_.groups.erase(std::remove_if(w_.groups.begin(), w_.groups.end(), [](const Group& x) { return x.lanes == 0; }),
                      w_.groups.end());
      if (w_.groups.empty()) w_.done = true;
      if (yielded_) return;
    }
  }

 private:
  void arrive_of_copies() {
    if (!w_.arrivals.empty()) w_.arrive_now();
  }

  /// Makes groups ready whose waiting is over, joins those that have met, and picks the one that is furthest behind.
  Group* next() {
    std::vector<Group>& all = w_.groups;
    std::uint32_t at_warp_barrier = 0;
    for (Group& g : all) {
      if (g.state == Group::kYielded) g.state = Group::kReady;
      if (g.state == Group::kAtBarrier && w_.block->barriers[g.barrier].generation != g.generation) leave_barrier(g);
      if (g.state == Group::kAtCluster && w_.block->cluster->generation != g.generation)
        g.state = Group::kReady, ++g.pc;
      if (g.state == Group::kAtWarpBarrier) at_warp_barrier |= g.lanes;
    }
    for (Group& g : all) {
      if (g.state == Group::kAtWarpBarrier && (g.needed & w_.live & ~at_warp_barrier) == 0) g.needed = 0;
    }
    for (Group& g : all)
      if (g.state == Group::kAtWarpBarrier && g.needed == 0) g.state = Group::kReady, ++g.pc;
    for (std::size_t a = 0; a < all.size(); ++a) {
      for (std::size_t b = a + 1; b < all.size();) {
        const auto joins = [](const Group& g) { return g.state == Group::kReady || g.state == Group::kApart; };
        if (all[a].pc == all[b].pc && joins(all[a]) && joins(all[b])) {
          all[a].lanes |= all[b].lanes;
          all[a].state = Group::kReady;
          all.erase(all.begin() + static_cast<std::ptrdiff_t>(b));
        } else {
          ++b;
        }
      }
    }
    Group* best = nullptr;
    for (Group& g : all) {
      if (g.state == Group::kApart && (g.needed & w_.live & ~g.lanes) == 0) g.state = Group::kReady;
      if (g.state == Group::kReady && !tried(g) && (best == nullptr || g.pc < best->pc)) best = &g;
    }
    return best;
  }
  /// Lanes that waited in vain in this turn.
  bool tried(const Group& g) const { return (g.lanes & in_vain_) != 0; }

  void leave_barrier(Group& g) {
    code_[g.pc].run(w_, code_[g.pc], g.lanes);
    g.state = Group::kReady;
    ++g.pc;
  }

  /// The first place where lanes of another group are.
  std::uint32_t limit(const Group& g) const {
    std::uint32_t limit = ~0U;
    for (const Group& other : w_.groups)
      if (&other != &g && other.pc > g.pc && (other.state == Group::kReady || other.state == Group::kApart))
        limit = std::min(limit, other.pc);
    return limit;
  }

  int run_group(Group& g, int budget) {
    std::uint32_t bound = limit(g);
    try {
      while (budget > 0 && g.pc < bound) {
        const Instruction& i = code_[g.pc];
        --budget;
        ++w_.instructions;
        std::uint32_t lanes = g.lanes;
        if (i.guarded) lanes &= predicate(w_, i.guard);
        if (i.flow == Flow::kPlain) {
          if (i.converges && !together(g, i)) return budget;
          if (lanes != 0) i.run(w_, i, lanes);
          ++g.pc;
          continue;
        }
        if (i.flow == Flow::kBranch) {
          if (lanes == g.lanes) {
            g.pc = i.target;
            if (g.pc < bound) bound = limit(g);
          } else if (lanes == 0) {
            ++g.pc;
          } else {
            const Group other{.pc = i.target, .lanes = lanes};
            g.lanes &= ~lanes;
            ++g.pc;
            w_.groups.push_back(other);
            return budget;
          }
          continue;
        }
        if (!flow(g, i, lanes)) return budget;
      }
    } catch (const Error& e) {
      throw Error("kernel " + w_.block->launch->kernel->name + ", " + where(w_, g) + ": " + e.what());
    }
    return budget;
  }

  /// Whether all lanes that an instruction needs are here; else the group waits for them.
  bool together(Group& g, const Instruction& i) {
    std::uint32_t needed = w_.live;
    if (i.has_members) needed &= static_cast<std::uint32_t>(number(w_, i.members, std::countr_zero(g.lanes)));
    if ((needed & ~g.lanes) == 0) return true;
    g.state = Group::kApart;
    g.needed = needed;
    return false;
  }

  /// Everything but plain instructions and branches. Returns whether the group goes on.
  bool flow(Group& g, const Instruction& i, std::uint32_t lanes) {
    switch (i.flow) {
      case Flow::kExit:
        exit(lanes);
        g.lanes &= ~lanes;
        if (g.lanes == 0) return false;
        ++g.pc;
        return true;
      case Flow::kBarrier:
        if (lanes == 0) return ++g.pc, true;
        if (!together(g, i)) return false;
        return enter_barrier(g, i);
      case Flow::kClusterWait: {
        if (lanes == 0) return ++g.pc, true;
        if (w_.block->cluster->generation != w_.cluster_generation) return ++g.pc, true;
        g.state = Group::kAtCluster;
        g.generation = w_.cluster_generation;
        return false;
      }
      case Flow::kWarpBarrier:
        if (lanes == 0) return ++g.pc, true;
        each_lane(g.lanes, [&](int l) {
          if ((number(w_, i.members, l) >> l & 1) == 0)
            throw Error("lane " + std::to_string(l) + " waits at a barrier that it does not belong to");
        });
        g.state = Group::kAtWarpBarrier;
        g.needed = static_cast<std::uint32_t>(number(w_, i.members, std::countr_zero(g.lanes)));
        return false;
      case Flow::kTryWait:
        if (lanes != 0) i.run(w_, i, lanes);
        ++g.pc;
        if (!w_.try_failed) return true;
        w_.try_failed = false;
        break;
      default:
        ++g.pc;
        if (lanes == 0) return true;
    }
    in_vain_ |= g.lanes;
    g.state = Group::kYielded;
    if ((w_.live & ~in_vain_) == 0) yielded_ = true;
    return false;
  }

  bool enter_barrier(Group& g, const Instruction& i) {
    Block& block = *w_.block;
    const int lane = std::countr_zero(g.lanes);
    // bar.red has its predicate last, and then no number of threads.
    const bool reduces = i.mode2 != 0;
    const std::uint64_t id = i.s.empty() ? 0 : number(w_, i.s[0], lane);
    if (id > 15) throw Error("barrier " + std::to_string(id));
    std::uint32_t expected = block.live_threads;
    if (!reduces && i.s.size() > 1) expected = static_cast<std::uint32_t>(number(w_, i.s[1], lane));
    Barrier& b = block.barriers[id];
    b.arrived += static_cast<std::uint32_t>(std::popcount(g.lanes));
    if (reduces) {
      const std::uint32_t p = predicate(w_, i.s.back());
      b.any = b.any || (p & g.lanes) != 0;
      b.all = b.all && (p & g.lanes) == g.lanes;
    }
    g.barrier = static_cast<int>(id);
    g.generation = b.generation;
    g.state = Group::kAtBarrier;
    if (b.arrived >= expected) open(b);
    if (b.generation == g.generation) return false;
    leave_barrier(g);
    return true;
  }
  void open(Barrier& b) {
    b.result_any = b.any, b.result_all = b.all;
    b.any = false, b.all = true;
    b.arrived = 0;
    ++b.generation;
    ++w_.block->cluster->progress;
  }

  void exit(std::uint32_t lanes) {
    w_.live &= ~lanes;
    const auto count = static_cast<std::uint32_t>(std::popcount(lanes));
    Block& block = *w_.block;
    block.live_threads -= count;
    Cluster& cluster = *block.cluster;
    cluster.live_threads -= count;
    ++cluster.progress;
    if (cluster.arrived > 0 && cluster.arrived >= cluster.live_threads) cluster.arrived = 0, ++cluster.generation;
    // bar.sync 0 counts threads that are still there.
    if (Barrier& b = block.barriers[0]; b.arrived > 0 && b.arrived >= block.live_threads) open(b);
  }

  Warp& w_;
  const std::vector<Instruction>& code_;
  std::uint32_t in_vain_ = 0;
  bool yielded_ = false;
};

/// The blocks of a cluster, made once for each of the host's threads.
class Runner {
 public:
  explicit Runner(const Launch& launch) : launch_(launch), kernel_(*launch.kernel) {
    const std::uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    const std::size_t warps = (threads + kLanes - 1) / kLanes;
    cluster_.blocks.resize(launch.cluster);
    for (Block& b : cluster_.blocks) {
      b.launch = &launch;
      b.cluster = &cluster_;
      b.shared_bytes = kernel_.static_shared + launch.dynamic_shared + 4096;
      b.shared_memory.resize(b.shared_bytes + 1024);
      b.shared = b.shared_memory.data();
      b.shared += (1024 - reinterpret_cast<std::uintptr_t>(b.shared) % 1024) % 1024;
      b.shared_bytes = shared_size();
      b.local.resize(kernel_.local_bytes * threads);
      const std::size_t bytes = (kernel_.register_bytes + 63) / 64 * 64;
      b.registers.assign(bytes * warps + 64, std::byte{0xFF});
      std::byte* first = b.registers.data();
      first += (64 - reinterpret_cast<std::uintptr_t>(first) % 64) % 64;
      b.warps.resize(warps);
      for (std::size_t w = 0; w < warps; ++w) {
        b.warps[w].registers = first + w * bytes;
        b.warps[w].constants = kernel_.constants.data();
        b.warps[w].block = &b;
        b.warps[w].number = static_cast<int>(w);
      }
    }
  }

  /// Runs cluster number n of the grid.
  void run(std::uint64_t n) {
    cluster_.random.seed(static_cast<std::uint32_t>(launch_.seed + 1 + n * 7919));
    cluster_.arrived = 0, cluster_.progress = 0, cluster_.live_threads = 0;
    for (std::uint32_t rank = 0; rank < launch_.cluster; ++rank)
      begin(cluster_.blocks[rank], n * launch_.cluster + rank, rank);
    std::vector<Warp*> warps;
    for (Block& b : cluster_.blocks)
      for (Warp& w : b.warps) warps.push_back(&w);
    int idle = 0;
    while (!warps.empty()) {
      const std::uint64_t before = cluster_.progress;
      std::shuffle(warps.begin(), warps.end(), cluster_.random);
      std::uint64_t ran = 0;
      for (Warp* w : warps) {
        const std::uint64_t instructions = w->instructions;
        Turn(*w).run(16 + static_cast<int>(cluster_.random() % 2048));
        ran += w->instructions - instructions;
      }
      std::erase_if(warps, [](const Warp* w) { return w->done && w->arrivals.empty(); });
      idle = cluster_.progress == before ? idle + 1 : 0;
      if (!warps.empty() && (idle > kMostTurns || (ran == 0 && idle > 2))) stuck(warps);
    }
  }

 private:
  std::size_t shared_size() const {
    // A kernel's dynamic shared memory begins behind its own variables, aligned as it asks for.
    return kernel_.static_shared + launch_.dynamic_shared + (launch_.dynamic_shared > 0 ? 1024 : 0);
  }

  [[noreturn]] void stuck(const std::vector<Warp*>& warps) const {
    std::string text = "kernel " + kernel_.name + ": all warps wait:";
    int told = 0;
    for (const Warp* w : warps)
      for (const Group& g : w->groups)
        if (++told <= 24) text += "\n  " + where(*w, g);
    throw Error(text);
  }

  void begin(Block& b, std::uint64_t number_in_grid, std::uint32_t rank) {
    b.rank = rank;
    b.index[0] = static_cast<std::uint32_t>(number_in_grid % launch_.grid[0]);
    b.index[1] = static_cast<std::uint32_t>(number_in_grid / launch_.grid[0] % launch_.grid[1]);
    b.index[2] = static_cast<std::uint32_t>(number_in_grid / launch_.grid[0] / launch_.grid[1]);
    std::memset(b.shared, 0xFF, b.shared_bytes);  // NaN for whoever reads what was not written
    for (Barrier& barrier : b.barriers) barrier = {};
    const std::uint32_t threads = launch_.block[0] * launch_.block[1] * launch_.block[2];
    b.live_threads = threads;
    cluster_.live_threads += threads;
    for (Warp& w : b.warps) {
      const std::uint32_t first = static_cast<std::uint32_t>(w.number) * kLanes;
      const std::uint32_t count = std::min<std::uint32_t>(kLanes, threads - first);
      w.live = count == kLanes ? kAll : (1U << count) - 1;
      w.groups.assign(1, Group{.pc = 0, .lanes = w.live});
      w.copies.clear(), w.arrivals.clear(), w.products.clear();
      std::fill(std::begin(w.committed_copies), std::end(w.committed_copies), 0);
      w.committed_products = 0;
      w.done = w.try_failed = false;
      w.instructions = 0;
      w.known = {0, 0};
      for (int l = 0; l < kLanes; ++l) {
        set_number(w, kernel_.parameter_base, l, reinterpret_cast<std::uint64_t>(launch_.parameters.data()));
        const std::size_t thread = std::min<std::size_t>(first + static_cast<std::uint32_t>(l), threads - 1);
        set_number(w, kernel_.local_base, l,
                   reinterpret_cast<std::uint64_t>(b.local.data() + thread * kernel_.local_bytes));
        for (const Special& s : kernel_.specials)
          set_number(w, s.at, l, special(b, s.name, static_cast<std::uint32_t>(thread)));
      }
    }
  }

  std::uint64_t special(const Block& b, const std::string& name, std::uint32_t thread) const {
    const auto axis = [&](std::uint32_t x, std::uint32_t y, std::uint32_t z) {
      return name.ends_with(".x") ? x : name.ends_with(".y") ? y : z;
    };
    const std::uint32_t* t = launch_.block;
    if (name.starts_with("%tid.")) return axis(thread % t[0], thread / t[0] % t[1], thread / t[0] / t[1]);
    if (name.starts_with("%ntid.")) return axis(t[0], t[1], t[2]);
    if (name.starts_with("%ctaid.")) return axis(b.index[0], b.index[1], b.index[2]);
    if (name.starts_with("%nctaid.")) return axis(launch_.grid[0], launch_.grid[1], launch_.grid[2]);
    if (name == "%laneid") return thread % kLanes;
    if (name == "%lanemask_lt") return (1U << thread % kLanes) - 1;
    if (name == "%warpid") return thread / kLanes;
    if (name == "%cluster_ctarank") return b.rank;
    if (name == "%cluster_nctarank") return launch_.cluster;
    if (name == "%smid") return 0;
    throw Error("kernel " + kernel_.name + ": " + name + " is not known");
  }

  const Launch& launch_;
  const Kernel& kernel_;
  Cluster cluster_;
};

}  // namespace

void Warp::copy_now(std::uint32_t lanes, std::uint32_t up_to) {
  std::erase_if(copies, [&](const Copy& c) {
    if ((lanes >> c.lane & 1) == 0 || c.group >= up_to) return false;
    if (c.source_size > 0) std::memcpy(c.to, c.from, static_cast<std::size_t>(c.source_size));
    std::memset(c.to + c.source_size, 0, static_cast<std::size_t>(c.size - c.source_size));
    return true;
  });
}
void Warp::arrive_now() {
  std::erase_if(arrivals, [&](const CopyArrival& a) {
    if ((block->cluster->random() >> 8 & 1) != 0) return false;
    copy_now(1U << a.lane, ~0U);
    arrive(*this, shared_address(*this, a.at, 8));
    return true;
  });
}

std::byte* shared_address(Warp& w, std::uint64_t at, int size) {
  Block* block = w.block;
  if (const std::uint64_t rank = at >> 24; rank != 0) {
    if (rank > block->cluster->blocks.size())
      throw Error("shared memory of block " + std::to_string(rank - 1) + " of the cluster");
    block = &block->cluster->blocks[rank - 1];
    at &= 0xFF'FFFF;
  }
  if (at % static_cast<std::uint64_t>(size) != 0 && size <= 16)
    throw Error("shared memory at " + hex(at) + ": not aligned to " + std::to_string(size));
  if (at + static_cast<std::uint64_t>(size) > block->shared_bytes)
    throw Error("shared memory at " + hex(at) + ": past its " + std::to_string(block->shared_bytes) + " bytes");
  return block->shared + at;
}

std::byte* host_address(Warp& w, const Instruction& i, const Operand& o, int lane, int size) {
  std::uint64_t at = number(w, o, lane) + static_cast<std::uint64_t>(o.offset);
  if (i.space == Space::kShared || i.space == Space::kSharedCluster) return shared_address(w, at & 0xFFFF'FFFF, size);
  if (i.space == Space::kGlobal || i.space == Space::kGeneric) {
    if (!inside(w.known, at, size)) {
      const std::vector<Range>& all = w.block->launch->memory;
      const auto it =
          std::upper_bound(all.begin(), all.end(), at, [](std::uintptr_t x, const Range& r) { return x < r.begin; });
      if (it != all.begin() && inside(*(it - 1), at, size)) {
        w.known = *(it - 1);
      } else {
        const Block& b = *w.block;
        const auto begin = [](const std::vector<std::byte>& v) { return reinterpret_cast<std::uintptr_t>(v.data()); };
        const Range others[] = {
            {reinterpret_cast<std::uintptr_t>(b.shared), reinterpret_cast<std::uintptr_t>(b.shared) + b.shared_bytes},
            {begin(b.local), begin(b.local) + b.local.size()},
            {begin(b.launch->parameters), begin(b.launch->parameters) + b.launch->parameters.size()}};
        if (i.space == Space::kGlobal ||
            std::none_of(std::begin(others), std::end(others), [&](const Range& r) { return inside(r, at, size); }))
          throw Error("lane " + std::to_string(lane) + ": " + std::to_string(size) + " bytes at " + hex(at) +
                      ", which is no memory of the GPU");
      }
    }
    if (at % static_cast<std::uint64_t>(size) != 0)
      throw Error("lane " + std::to_string(lane) + ": address " + hex(at) + " is not aligned to " +
                  std::to_string(size));
  }
  return reinterpret_cast<std::byte*>(at);
}

void run(const Launch& launch) {
  const std::uint64_t blocks = std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  const std::uint64_t clusters = blocks / launch.cluster;
  std::atomic<std::uint64_t> next{0};
  std::exception_ptr failure;
  std::mutex lock;
  const auto work = [&] {
    try {
      Runner runner(launch);
      for (std::uint64_t n = next++; n < clusters; n = next++) runner.run(n);
    } catch (...) {
      next = clusters;
      const std::scoped_lock hold(lock);
      if (!failure) failure = std::current_exception();
    }
  };
  const std::uint64_t most = std::min<std::uint64_t>(clusters, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t < most; ++t) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace emulator
