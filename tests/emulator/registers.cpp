// Gives registers that are never live together the same place: PTX names tens of thousands of them, and warps whose
// registers fit into a cache run several times faster.
#include <algorithm>
#include <bit>
#include <map>

#include "ptx.h"

namespace emulator {

namespace {

/// A set of registers, by number.
class Set {
 public:
  explicit Set(std::size_t size) : words_((size + 63) / 64) {}
  bool has(std::size_t n) const { return (words_[n / 64] >> n % 64 & 1) != 0; }
  void add(std::size_t n) { words_[n / 64] |= std::uint64_t{1} << n % 64; }
  void remove(std::size_t n) { words_[n / 64] &= ~(std::uint64_t{1} << n % 64); }
  /// Adds all of another set; whether that changed anything.
  bool add_all(const Set& other) {
    bool changed = false;
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const std::uint64_t all = words_[w] | other.words_[w];
      changed = changed || all != words_[w];
      words_[w] = all;
    }
    return changed;
  }
  template <class F>
  void each(const F& f) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t rest = words_[w]; rest != 0; rest &= rest - 1)
        f(64 * w + static_cast<std::size_t>(std::countr_zero(rest)));
  }

 private:
  std::vector<std::uint64_t> words_;
};

struct Life {
  std::uint32_t first = ~0U;
  std::uint32_t last = 0;
  std::uint32_t old_at = 0;
  std::size_t bytes = 0;

  void touch(std::uint32_t at) { first = std::min(first, at), last = std::max(last, at); }
};

/// Straight code.
struct Stretch {
  std::uint32_t begin;
  std::uint32_t end;
  std::vector<std::size_t> next;
};

class Allocation {
 public:
  explicit Allocation(Kernel& k) : k_(k) {}

  void run() {
    number_registers();
    if (lives_.empty()) return;
    cut();
    find_lives();
    place();
  }

 private:
  template <class F>
  void each_operand(Instruction& i, const F& f) {
    for (Operand& o : i.d) f(o, true);
    for (Operand& o : i.s) f(o, false);
    if (i.guarded) f(i.guard, false);
    if (i.has_members || i.flow == Flow::kWarpBarrier) f(i.members, false);
  }
  static bool is_register(const Operand& o) { return !o.constant && !o.absent; }

  std::size_t number_of(const Operand& o, std::size_t bytes) {
    const auto [it, fresh] = numbers_.try_emplace(o.at, lives_.size());
    if (fresh) lives_.push_back({.old_at = o.at, .bytes = bytes});
    return it->second;
  }
  void number_registers() {
    // A place's size is the distance to the next one.
    std::vector<std::uint32_t> places;
    const auto note = [&](const Operand& o, bool) {
      if (is_register(o)) places.push_back(o.at);
    };
    for (Instruction& i : k_.code) each_operand(i, note);
    for (const Special& s : k_.specials) places.push_back(s.at.at);
    std::sort(places.begin(), places.end());
    for (Instruction& i : k_.code) {
      each_operand(i, [&](const Operand& o, bool) {
        if (!is_register(o)) return;
        const auto after = std::upper_bound(places.begin(), places.end(), o.at);
        const std::size_t room = (after == places.end() ? k_.register_bytes : *after) - o.at;
        number_of(o, std::min<std::size_t>(room, o.wide ? 256 : 128));
      });
    }
  }

  void cut() {
    std::vector<char> begins(k_.code.size() + 1, 0);
    begins[0] = 1;
    for (std::uint32_t i = 0; i < k_.code.size(); ++i) {
      const Instruction& in = k_.code[i];
      if (in.flow == Flow::kBranch) begins[in.target] = 1;
      if (in.flow == Flow::kBranch || in.flow == Flow::kExit) begins[i + 1] = 1;
    }
    std::map<std::uint32_t, std::size_t> at;
    for (std::uint32_t i = 0; i < k_.code.size(); ++i) {
      if (begins[i] != 0) {
        at[i] = stretches_.size();
        stretches_.push_back({i, i, {}});
      }
      stretches_.back().end = i + 1;
    }
    for (Stretch& s : stretches_) {
      const Instruction& in = k_.code[s.end - 1];
      if (in.flow == Flow::kBranch && in.target < k_.code.size()) s.next.push_back(at.at(in.target));
      const bool ends = (in.flow == Flow::kBranch || in.flow == Flow::kExit) && !in.guarded;
      if (!ends && s.end < k_.code.size()) s.next.push_back(at.at(s.end));
    }
  }

  /// Whether an instruction writes a register whatever it held before.
  static bool overwrites(const Instruction& i) { return !i.guarded && i.flow == Flow::kPlain && !i.keeps; }

  /// What is live at the beginning of a stretch, from what is live at its end.
  void backwards(const Stretch& s, Set& live) {
    for (std::uint32_t at = s.end; at-- > s.begin;) {
      Instruction& i = k_.code[at];
      each_operand(i, [&](const Operand& o, bool written) {
        if (is_register(o) && written && overwrites(i)) live.remove(numbers_.at(o.at));
      });
      each_operand(i, [&](const Operand& o, bool written) {
        if (is_register(o) && (!written || !overwrites(i))) live.add(numbers_.at(o.at));
      });
    }
  }

  void find_lives() {
    std::vector<Set> in(stretches_.size(), Set(lives_.size()));
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t n = stretches_.size(); n-- > 0;) {
        Set live(lives_.size());
        for (const std::size_t next : stretches_[n].next) live.add_all(in[next]);
        backwards(stretches_[n], live);
        changed = in[n].add_all(live) || changed;
      }
    }
    for (std::size_t n = 0; n < stretches_.size(); ++n) {
      Set live(lives_.size());
      for (const std::size_t next : stretches_[n].next) live.add_all(in[next]);
      live.each([&](std::size_t r) { lives_[r].touch(stretches_[n].end); });
      in[n].each([&](std::size_t r) { lives_[r].touch(stretches_[n].begin); });
      touch_operands(stretches_[n]);
    }
    // What a warp finds filled in is live from the beginning.
    const auto from_the_start = [&](const Operand& o) {
      if (const auto it = numbers_.find(o.at); it != numbers_.end()) lives_[it->second].touch(0);
    };
    for (const Special& s : k_.specials) from_the_start(s.at);
    from_the_start(k_.parameter_base), from_the_start(k_.local_base);
  }
  void touch_operands(const Stretch& s) {
    for (std::uint32_t at = s.begin; at < s.end; ++at)
      each_operand(k_.code[at], [&](const Operand& o, bool) {
        if (is_register(o)) lives_[numbers_.at(o.at)].touch(at);
      });
  }

  void place() {
    std::vector<std::size_t> order(lives_.size());
    for (std::size_t n = 0; n < order.size(); ++n) order[n] = n;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return lives_[a].first < lives_[b].first; });
    std::multimap<std::uint32_t, std::size_t> busy;  // by the end of a life
    std::map<std::size_t, std::vector<std::uint32_t>> free;
    std::vector<std::uint32_t> new_at(lives_.size());
    std::size_t bytes = 0;
    for (const std::size_t n : order) {
      while (!busy.empty() && busy.begin()->first < lives_[n].first) {
        const std::size_t over = busy.begin()->second;
        free[lives_[over].bytes].push_back(new_at[over]);
        busy.erase(busy.begin());
      }
      std::vector<std::uint32_t>& same = free[lives_[n].bytes];
      if (!same.empty()) {
        new_at[n] = same.back();
        same.pop_back();
      } else {
        if (lives_[n].bytes >= 64) bytes = (bytes + 63) / 64 * 64;
        new_at[n] = static_cast<std::uint32_t>(bytes);
        bytes += lives_[n].bytes;
      }
      busy.emplace(lives_[n].last, n);
    }
    const auto move = [&](Operand& o) {
      if (const auto it = numbers_.find(o.at); is_register(o) && it != numbers_.end()) o.at = new_at[it->second];
    };
    // Operands of specials and bases that no instruction names keep a place of their own, behind the others.
    const auto move_or_append = [&](Operand& o) {
      if (numbers_.contains(o.at)) return move(o);
      bytes = (bytes + 63) / 64 * 64;
      o.at = static_cast<std::uint32_t>(bytes);
      bytes += 256;
    };
    for (Instruction& i : k_.code) each_operand(i, [&](Operand& o, bool) { move(o); });
    for (Special& s : k_.specials) move_or_append(s.at);
    move_or_append(k_.parameter_base), move_or_append(k_.local_base);
    k_.register_bytes = bytes;
  }

  Kernel& k_;
  std::map<std::uint32_t, std::size_t> numbers_;  ///< by place
  std::vector<Life> lives_;
  std::vector<Stretch> stretches_;
};

}  // namespace

void share_registers(Kernel& kernel) { Allocation(kernel).run(); }

}  // namespace emulator
