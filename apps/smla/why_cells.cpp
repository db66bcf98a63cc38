#include "why_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/registry.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::int64_t kWindow = 128;
constexpr std::int64_t kManyHeads = 64;
constexpr std::array<std::int64_t, 5> kHeads{8, 16, 32, 64, 128};
constexpr std::array<std::int64_t, 6> kBatches{1, 4, 16, 64, 128, 256};
constexpr std::array<std::int64_t, 4> kTokens{512, 2048, 4096, 8192};
constexpr std::array<std::int64_t, 3> kPrefillKeys{640, 1152, 2048};

struct DecodeLayer {
  std::string_view name;
  std::int64_t entries = 0;  ///< beside the window; 0 and top_k: the model's choice
  std::int64_t page = 64;
  bool top_k = false;
};
constexpr std::array<DecodeLayer, 6> kLayers{{{.name = "window only"},
                                              {.name = "C4A", .top_k = true},
                                              {.name = "C128A, 8k tokens", .entries = 64, .page = 2},
                                              {.name = "C128A, 32k tokens", .entries = 256, .page = 2},
                                              {.name = "C128A, 128k tokens", .entries = 1024, .page = 2},
                                              {.name = "C128A, 1M tokens", .entries = 8192, .page = 2}}};

struct Card {
  std::string_view name;
  device::Gpu gpu;
};
constexpr std::size_t kKib = 1024;
constexpr std::size_t kMib = 1024 * kKib;
constexpr device::Gpu card(int capability, int multiprocessors, std::size_t shared_kib, std::size_t l2_mib,
                           std::string_view name) {
  return {.ordinal = 0,
          .capability = capability,
          .multiprocessors = multiprocessors,
          .shared_bytes = shared_kib * kKib,
          .l2_bytes = l2_mib * kMib,
          .name = name};
}
constexpr std::array<Card, 5> kCards{{{"a100", card(80, 108, 163, 40, "A100")},
                                      {"l40s", card(89, 142, 99, 96, "L40S")},
                                      {"h100", card(90, 132, 227, 50, "H100")},
                                      {"h200", card(90, 132, 227, 60, "H200")},
                                      {"b200", card(100, 148, 227, 126, "B200")}}};

/// Asks about cells and keeps what is said.
class Cells {
 public:
  Cells(const SparseAttention::Problem& shape, const PlanOptions& options, const device::Gpu* gpu)
      : shape_(shape), options_(options), machine_(machine_for(options)) {
    if (gpu != nullptr) machine_.gpu = *gpu;
  }

  /// Who runs a cell: a name, or "none".
  std::string ask(const std::string& cell, std::int64_t tokens, std::int64_t heads, std::int64_t entries,
                  std::int64_t page) {
    SparseAttention::Problem problem = shape_;
    problem.tokens = tokens;
    problem.heads = heads;
    problem.scopes = entries > 0 ? 2 : 1;
    problem.scope[0].block_size = 64;
    problem.scope[0].width = kWindow;
    problem.scope[1] = {.format = shape_.scope[0].format, .block_size = page, .width = entries};
    if (entries == 0) problem.scope[1] = {};
    std::string reasons;
    for (const Candidate& c : candidates<SparseAttention>(problem, options_, machine_)) {
      if (!options_.implementation.empty() && c.name != options_.implementation) continue;
      if (c.refusal.empty()) {
        out.details += fmt::format("{}: {}{}{}\n", cell, c.name, c.choice.empty() ? "" : ", ", c.choice);
        return c.name;
      }
      if (!c.refusal.starts_with("runs on "))
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", c.name, c.refusal);
    }
    out.served = false;
    out.details += fmt::format("{}: none ({})\n", cell, reasons);
    return "none";
  }

  CellTables out;

 private:
  SparseAttention::Problem shape_;
  PlanOptions options_;
  Machine machine_;
};

/// Rows of a table: what they are of, and a name for each column. Rows with the same names become one.
struct TableRows {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;

  void add(const std::string& title, const std::vector<std::string>& names) {
    for (auto& [titles, known] : rows) {
      if (known != names) continue;
      titles += "; " + title;
      return;
    }
    rows.emplace_back(title, names);
  }
};

template <class Values>
std::string head(const std::string& title, const Values& values) {
  std::string text = "| " + title;
  std::string rule = "|---";
  for (const std::int64_t value : values) text += fmt::format(" | {}", value), rule += "|---";
  return text + " |\n" + rule + "|\n";
}

/// A block of rows for each number of heads; heads that have the same block share it.
std::string table_of(const std::vector<std::pair<std::int64_t, TableRows>>& blocks, const std::string& every) {
  std::vector<std::pair<std::string, const TableRows*>> shared;
  for (const auto& block : blocks) {
    const auto same = std::ranges::find_if(shared, [&](const auto& s) { return s.second->rows == block.second.rows; });
    if (same == shared.end()) {
      shared.emplace_back(std::to_string(block.first), &block.second);
    } else {
      same->first += ", " + std::to_string(block.first);
    }
  }
  std::string text;
  for (const auto& [heads, block] : shared) {
    for (const auto& [titles, names] : block->rows) {
      text += fmt::format("| {} heads: {}", heads, block->rows.size() == 1 ? every : titles);
      for (const std::string& name : names) text += " | " + name;
      text += " |\n";
    }
  }
  return text;
}

}  // namespace

device::Gpu known_gpu(const std::string& name) {
  std::string names;
  for (const Card& known : kCards) {
    if (known.name == name) {
      if (!built_with_cuda()) throw Unsupported("--gpu: this build has no kernels for GPUs, which decide for a card");
      return known.gpu;
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  throw InvalidArgument("--gpu: got \"" + name + "\", expected one of " + names);
}

CellTables attention_cells(const SparseAttention::Problem& shape, const PlanOptions& options, const device::Gpu* gpu) {
  Cells cells(shape, options, gpu);
  std::vector<std::pair<std::int64_t, TableRows>> decode;
  std::vector<std::pair<std::int64_t, TableRows>> prefill;
  for (const std::int64_t heads : kHeads) {
    decode.emplace_back(heads, TableRows{});
    for (const DecodeLayer& layer : kLayers) {
      const std::int64_t chosen = heads > kManyHeads ? 1024 : 512;
      const std::int64_t entries = layer.top_k ? chosen : layer.entries;
      std::vector<std::string> names;
      for (const std::int64_t n : kBatches) {
        const std::string cell = fmt::format("decode, {} heads, {}, {} requests", heads, layer.name, n);
        names.push_back(cells.ask(cell, n, heads, entries, layer.page));
      }
      decode.back().second.add(std::string(layer.name), names);
    }
    prefill.emplace_back(heads, TableRows{});
    for (const std::int64_t keys : kPrefillKeys) {
      std::vector<std::string> names;
      for (const std::int64_t n : kTokens) {
        const std::string cell = fmt::format("prefill, {} heads, {} keys, {} queries", heads, keys, n);
        names.push_back(cells.ask(cell, n, heads, keys - kWindow, 64));
      }
      prefill.back().second.add(fmt::format("{} keys", keys), names);
    }
  }
  cells.out.text = head("decode, by requests", kBatches) + table_of(decode, "every layer") + "\n" +
                   head("prefill, by queries", kTokens) + table_of(prefill, "any number of keys");
  return cells.out;
}

}  // namespace smla
