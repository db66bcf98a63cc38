#include "bench_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "bench/peers.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "smla-bench/1";

/// The member of that name. @throws InvalidArgument when there is none.
const Json& need(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end())
    throw InvalidArgument(fmt::format("{}: got no such key, expected it", key));
  return *found;
}

[[noreturn]] void wrong_type(const std::string& key, const Json& got, const char* expected) {
  constexpr std::size_t kShown = 60;
  throw InvalidArgument(fmt::format("{}: got {}, expected {}", key, got.dump().substr(0, kShown), expected));
}

double number_of(const std::string& key, const Json& json) {
  if (!json.is_number()) wrong_type(key, json, "a number");
  return json.get<double>();
}

template <class T>
T value(const Json& json, const char* key) {
  const Json& found = need(json, key);
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found.is_string()) wrong_type(key, found, "text");
  } else {
    if (!found.is_number()) wrong_type(key, found, "a number");
  }
  return found.get<T>();
}

bench::Machine machine_of(const Json& json, const Json& report) {
  bench::Machine out;
  out.cpu = value<std::string>(report, "cpu");
  out.cores = value<int>(report, "cores");
  out.threads = value<int>(report, "threads");
  for (const auto& [name, gflops] : need(json, "peak_gflops").items())
    out.peaks.push_back({.name = name, .flops = number_of(name, gflops) * 1e9});
  if (!report.contains("device")) {
    out.read_bandwidth = value<double>(json, "read_gbs") * 1e9;
    return out;
  }
  out.gpu = value<std::string>(report, "device");
  out.driver = value<std::string>(report, "driver");
  out.cuda = value<std::string>(report, "cuda");
  out.product = value<std::string>(json, "product");
  out.timer = value<double>(json, "timer_us") * 1e-6;
  out.launch = json.value("launch_us", 0.0) * 1e-6;
  out.follow = json.value("follow_us", 0.0) * 1e-6;
  for (const auto& [name, gbs] : need(json, "bandwidth_gbs").items())
    out.bandwidths.push_back({.name = name, .flops = number_of(name, gbs) * 1e9});
  return out;
}

bench::Row row_of(const Json& json) {
  bench::Row row;
  row.group = value<std::string>(json, "group");
  row.name = value<std::string>(json, "name");
  row.shape = value<std::string>(json, "shape");
  row.cell = json.value("cell", "");
  row.skipped = json.value("skipped", "");
  if (!row.skipped.empty()) return row;
  row.implementation = value<std::string>(json, "implementation");
  row.time.runs = value<std::int64_t>(json, "runs");
  row.time.median = value<double>(json, "median_ms") * 1e-3;
  row.time.p10 = value<double>(json, "p10_ms") * 1e-3;
  row.time.p90 = value<double>(json, "p90_ms") * 1e-3;
  row.time.best = value<double>(json, "best_ms") * 1e-3;
  if (json.value("reading_in_turn", false)) row.time.reading = value<double>(json, "reading_gbs") * 1e9;
  row.flops = value<double>(json, "gflop") * 1e9;
  row.bytes = value<double>(json, "megabytes") * 1e6;
  row.bf16 = json.value("bf16", false);
  row.traffic = json.value("traffic", "copy") == "gather" ? bench::Traffic::kGather : bench::Traffic::kCopy;
  if (json.contains("stages")) {
    for (const auto& [name, value] : need(json, "stages").items())
      row.stages.emplace_back(name, number_of(name, value));
  }
  row.product_rate = json.value("product_rate", 1.0);
  if (const std::string check = json.value("check", ""); !check.empty()) {
    constexpr std::string_view kWrong = "WRONG: ";
    row.check = {.done = true, .l2 = value<double>(json, "l2"), .failure = check == "ok" ? "" : check};
    if (row.check.failure.starts_with(kWrong)) row.check.failure.erase(0, kWrong.size());
  }
  if (!(row.time.median > 0)) throw InvalidArgument("got a time of 0, expected more");
  return row;
}

std::string name_of(const bench::Row& row) { return fmt::format("{} {} ({})", row.group, row.name, row.shape); }

/// Why a row cannot be compared; empty when it can.
std::string flaw(const bench::Row& row) {
  if (!row.skipped.empty()) return "skipped: " + row.skipped;
  return row.check.failure.empty() ? "" : "WRONG: " + row.check.failure;
}

void compare_ceilings(const BenchReport& a, const BenchReport& b, BenchComparison& out) {
  const std::vector<bench::Bound> first = bench::bounds_of(a.ceilings());
  const std::vector<bench::Bound> second = bench::bounds_of(b.ceilings());
  double most = -1;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const double larger = std::max(first[i].rate, second[i].rate);
    const double off = larger > 0 ? std::abs(first[i].rate - second[i].rate) / larger : 0;
    const std::string text = fmt::format("{}: {:.4g} and {:.4g} G/s ({:.1f} %)", first[i].name, first[i].rate * 1e-9,
                                         second[i].rate * 1e-9, 100 * off);
    if (off > kVoidDrift) out.void_because.push_back("ceilings differ: " + text);
    if (off > most) {
      most = off;
      out.difference = text;
    }
  }
  for (const auto& [name, report] : {std::pair("first", &a), std::pair("second", &b)}) {
    if (report->drift() > kVoidDrift)
      out.void_because.push_back(fmt::format("ceilings moved {:.1f} % during the {} run", 100 * report->drift(), name));
  }
}

}  // namespace

BenchReport parse_report(const std::string& file, const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (need(json, "format") != kFormat) wrong_type("format", need(json, "format"), "\"smla-bench/1\"");
    BenchReport out;
    out.command = json.value("command", "");
    out.model = value<std::string>(json, "model");
    out.clock = value<std::string>(json, "clock");
    out.before = machine_of(need(need(json, "machine"), "before"), json);
    out.after = machine_of(need(need(json, "machine"), "after"), json);
    for (const Json& row : need(json, "rows")) out.rows.push_back(row_of(row));
    return out;
  } catch (const Json::parse_error& e) {
    throw InvalidArgument(fmt::format(
        "{}: got text that is not JSON at byte {}, expected what `smla bench --json FILE` wrote", file, e.byte));
  } catch (const Json::exception& e) {
    throw InvalidArgument(file + ": " + e.what());
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(file + ": " + e.what());
  }
}

BenchComparison compare_reports(const BenchReport& a, const BenchReport& b) {
  if (a.on_gpu() != b.on_gpu())
    throw InvalidArgument("bench compare: got a run on a CPU and one on a GPU, expected two of a kind");
  BenchComparison out;
  compare_ceilings(a, b, out);
  const bench::Machine machine_a = a.ceilings();
  const bench::Machine machine_b = b.ceilings();
  double logs = 0;
  for (const bench::Row& row : a.rows) {
    const std::string name = name_of(row);
    const auto other = std::ranges::find_if(b.rows, [&](const bench::Row& r) { return name_of(r) == name; });
    if (other == b.rows.end()) {
      out.left_out.push_back(name + ": only in the first run");
      continue;
    }
    const std::string why = flaw(row).empty() ? flaw(*other) : flaw(row);
    if (!why.empty()) {
      out.left_out.push_back(name + ": " + why);
      continue;
    }
    const bench::Bound bound = bench::bound_of(row, machine_a);
    const std::vector<bench::Bound> theirs = bench::bounds_of(machine_b);
    const auto same = std::ranges::find(theirs, bound.name, &bench::Bound::name);
    const double rate = bound.rate / (bound.name == "product" ? row.product_rate : 1);
    const double their_rate = same == theirs.end()   ? 0
                              : bound.name == "read" ? other->read_bandwidth(machine_b)
                                                     : same->rate;
    const double scale = their_rate > 0 && rate > 0 ? rate / their_rate : 1;
    out.rows.push_back({.name = name,
                        .a = row.time.median,
                        .b = other->time.median,
                        .ratio = row.time.median * scale / other->time.median});
    logs += std::log(out.rows.back().ratio);
  }
  for (const bench::Row& row : b.rows) {
    if (std::ranges::none_of(a.rows, [&](const bench::Row& r) { return name_of(r) == name_of(row); })) {
      out.left_out.push_back(name_of(row) + ": only in the second run");
    }
  }
  if (!out.rows.empty()) out.mean = std::exp(logs / static_cast<double>(out.rows.size()));
  return out;
}

std::string comparison_table(const BenchComparison& c) {
  std::string out;
  for (const std::string& why : c.void_because) out += "VOID: " + why + "\n";
  out +=
      "ratio: first / second, the first scaled by the ceiling that bounds the row's floor (its rate there over its "
      "rate here); over 1: the second "
      "is\n"
      "faster; ratios within 3 % are noise\n";
  out += "ceilings that differ most: " + c.difference + "\n\n";
  std::size_t width = 4;
  for (const ComparedRow& row : c.rows) width = std::max(width, row.name.size());
  out += fmt::format("{:<{}}  {:>10}  {:>10}  {:>7}\n", "row", width, "first, us", "second, us", "ratio");
  for (const ComparedRow& row : c.rows)
    out +=
        fmt::format("{:<{}}  {:>10.4g}  {:>10.4g}  {:>6.3f}x\n", row.name, width, row.a * 1e6, row.b * 1e6, row.ratio);
  for (const std::string& text : c.left_out) out += "left out: " + text + "\n";
  if (!c.rows.empty()) {
    const auto [low, high] = std::ranges::minmax_element(c.rows, {}, &ComparedRow::ratio);
    out += fmt::format("\n{} rows: geometric mean {:.3f}x, {:.3f}x ({}) to {:.3f}x ({}){}\n", c.rows.size(), c.mean,
                       low->ratio, low->name, high->ratio, high->name, c.void_because.empty() ? "" : ", VOID");
  }
  return out;
}

std::string peers_table(const BenchReport& report, bool& voided) {
  if (!report.on_gpu())
    throw InvalidArgument("bench compare --peers: got a run on a CPU, expected one with --device cuda");
  const bench::Machine machine = report.ceilings();
  std::string head;
  voided = false;
  if (report.drift() > kVoidDrift) {
    voided = true;
    head += fmt::format("VOID: ceilings moved {:.1f} % during the run\n", 100 * report.drift());
  }
  for (const bench::PeerTable& table : bench::peer_tables()) {
    if (std::ranges::none_of(report.rows, [&](const bench::Row& row) { return table.cells.contains(row.cell); }))
      continue;
    const double off = bench::ceiling_difference(table, machine);
    head += fmt::format("{}{}: {}, {}; ceilings {:.1f} % off\n", off > kVoidDrift ? "VOID: " : "", table.name,
                        table.says.at("source"), table.says.at("card"), 100 * off);
    voided = voided || off > kVoidDrift;
  }
  std::string out = head +
                    "scaled: the peer's time, times its run's ceiling over this run's, of the ceiling that bounds the "
                    "row's floor; ratio: scaled / ours\n\n";
  out += fmt::format("{:<40}  {:>9}  {:>9}  {:>9}  {:>7}  {:>8}\n", "cell", "ours, us", "peer, us", "scaled", "ratio",
                     "x floor");
  for (const bench::Row& row : report.rows) {
    if (!row.skipped.empty()) continue;
    const GpuNumbers n = gpu_numbers(row, machine);
    if (n.peer <= 0) continue;
    out += fmt::format("{:<40}  {:>9.4g}  {:>9.4g}  {:>9.4g}  {:>7}  {:>8.2f}\n", row.cell, row.time.median * 1e6,
                       n.peer * 1e6, n.peer_scaled * 1e6,
                       row.check.failure.empty() ? fmt::format("{:.2f}x", n.ratio) : "WRONG", n.over_floor);
  }
  out += "\n";
  for (const PeerSummary& s : report.peer_summaries()) out += peer_line(s);
  return out;
}

}  // namespace smla
