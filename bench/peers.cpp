#include "bench/peers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "peer_tables.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::array<std::string_view, 4> kNumbers{"us", "floor_us", "logits_us", "tflops"};

bool is_number_column(std::string_view column) { return std::ranges::find(kNumbers, column) != kNumbers.end(); }

[[noreturn]] void fail(std::string_view name, int line, const std::string& text) {
  throw InvalidArgument("peers " + std::string(name) + ":" + std::to_string(line) + ": " + text);
}

double number(std::string_view name, int line, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0))
    fail(name, line, "got \"" + std::string(text) + "\", expected a positive number");
  return value;
}

/// Fields of a line; a field in quotes may hold commas.
std::vector<std::string> fields(std::string_view line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

void read_comment(PeerTable& table, int line, std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of("# "), text.size()));
  constexpr std::string_view kCeiling = "ceiling ";
  if (text.starts_with(kCeiling)) {
    text.remove_prefix(kCeiling.size());
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) fail(table.name, line, "got a ceiling without a number");
    table.ceilings[std::string(text.substr(0, space))] = number(table.name, line, text.substr(space + 1));
  } else if (const std::size_t colon = text.find(": "); colon != std::string_view::npos) {
    table.says[std::string(text.substr(0, colon))] = text.substr(colon + 2);
  }
}

void read_cell(PeerTable& table, int line, const std::vector<std::string>& columns,
               const std::vector<std::string>& values) {
  if (values.size() != columns.size()) {
    fail(table.name, line,
         "got " + std::to_string(values.size()) + " fields, expected " + std::to_string(columns.size()));
  }
  const auto grid = table.says.find("cells");
  std::string key = grid == table.says.end() ? table.name : grid->second;
  PeerCell cell;
  bool keys = true;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    keys = keys && !is_number_column(columns[i]);
    if (keys) {
      key += "/" + values[i];
    } else if (is_number_column(columns[i])) {
      cell.numbers[columns[i]] = number(table.name, line, values[i]);
    } else {
      cell.ours = values[i];
    }
  }
  if (!table.cells.emplace(key, cell).second) fail(table.name, line, "got " + key + " a second time");
}

double relative(double a, double b) { return a > 0 && b > 0 ? std::abs(a - b) / std::max(a, b) : 0; }

double ceiling(const PeerTable& table, std::string_view name) {
  const auto found = table.ceilings.find(name);
  return found == table.ceilings.end() ? 0 : found->second;
}

/// By the name of a bound.
double ceiling_of(const PeerTable& table, std::string_view name) {
  if (name == "product") return ceiling(table, "product_tflops") * 1e12;
  if (name == "copy") return ceiling(table, "copy_gbs") * 1e9;
  return name == "gather" ? std::max(ceiling(table, "gather_2_gbs"), ceiling(table, "gather_64_gbs")) * 1e9 : 0;
}

}  // namespace

PeerTable parse_peer_table(std::string_view name, std::string_view text) {
  PeerTable table;
  table.name = name;
  std::vector<std::string> columns;
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view now = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (now.empty()) continue;
    if (now[0] == '#') {
      read_comment(table, line, now);
    } else if (columns.empty()) {
      columns = fields(now);
      if (is_number_column(columns[0]) || std::ranges::none_of(columns, is_number_column)) {
        fail(name, line, "got a header without names or without numbers, expected columns of both");
      }
    } else {
      read_cell(table, line, columns, fields(now));
    }
  }
  for (const std::string_view key : {"source", "card", "method"}) {
    if (!table.says.contains(key)) fail(name, 1, "got no \"# " + std::string(key) + ": ...\"");
  }
  return table;
}

std::span<const PeerTable> peer_tables() {
  static const std::vector<PeerTable> tables = [] {
    std::vector<PeerTable> out;
    for (const auto& [name, text] : kPeerTables) out.push_back(parse_peer_table(name, text));
    return out;
  }();
  return tables;
}

PeerMatch find_peer(std::span<const PeerTable> tables, std::string_view cell) {
  for (const PeerTable& table : tables) {
    if (const auto found = table.cells.find(cell); found != table.cells.end())
      return {.table = &table, .cell = &found->second};
  }
  return {};
}

PeerTime peer_time(const Row& row, const Machine& machine, std::span<const PeerTable> tables) {
  const PeerMatch match = row.cell.empty() ? PeerMatch{} : find_peer(tables, row.cell);
  if (match.cell == nullptr) return {};
  PeerTime out;
  if (const auto us = match.cell->numbers.find("us"); us != match.cell->numbers.end()) {
    out.measured = us->second * 1e-6;
  } else if (const auto rate = match.cell->numbers.find("tflops"); rate != match.cell->numbers.end()) {
    out.measured = row.flops / (rate->second * 1e12);
  }
  const Bound ours = bound_of(row, machine);
  const double theirs = ceiling_of(*match.table, ours.name) * (ours.name == "product" ? row.product_rate : 1);
  out.scaled = ours.rate > 0 && theirs > 0 ? out.measured * theirs / ours.rate : out.measured;
  return out;
}

double ceiling_difference(const PeerTable& table, const Machine& machine) {
  double most = 0;
  for (const Bound& ours : bounds_of(machine)) most = std::max(most, relative(ceiling_of(table, ours.name), ours.rate));
  return most;
}

}  // namespace smla::bench
