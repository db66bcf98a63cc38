#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/peers.h"
#include "bench_report.h"

namespace smla {

namespace {

constexpr std::int64_t kFewRequests = 16;

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/// Collects ratios of cells.
struct Ratios {
  PeerSummary summary;
  double logs = 0;

  void add(const bench::Row& row, double r) {
    if (!row.check.failure.empty()) {
      ++summary.wrong;
      return;
    }
    logs += std::log(r);
    if (summary.count == 0 || r < summary.worst) {
      summary.worst = r;
      summary.worst_cell = row.cell;
    }
    ++summary.count;
  }
  PeerSummary finish() const {
    PeerSummary out = summary;
    if (out.count > 0) out.mean = std::exp(logs / out.count);
    return out;
  }
};

/// The requests of a decode cell, 0 where its name has none.
std::int64_t requests_of(const std::string& cell) {
  if (!cell.starts_with("decode/")) return 0;
  return std::atoll(cell.c_str() + cell.rfind('/') + 1);
}

std::string gpu_head(const BenchReport& report, const bench::Machine& machine) {
  std::string out = fmt::format("GPU {}, driver {}, CUDA {}\n", machine.gpu, machine.driver, machine.cuda);
  for (const bench::Peak& peak : machine.peaks) {
    const std::string what =
        peak.name == "product" ? "bf16 8192^3, " + machine.product : "mma.sync m16n8k16 bf16 from registers";
    out += fmt::format("  {:<12} {:>9.1f} TFLOP/s  {}\n", peak.name, peak.flops * 1e-12, what);
  }
  for (const bench::Peak& b : machine.bandwidths) {
    const std::string what = b.name == "copy"
                                 ? "read + written"
                                 : "fp8_ds_mla rows at random, blocks of " + b.name.substr(b.name.find('_') + 1);
    out += fmt::format("  {:<12} {:>9.1f} GB/s     {}\n", b.name, b.flops * 1e-9, what);
  }
  out += fmt::format("  {:<12} {:>9.2f} us       over which measurements of nothing spread, p10 to p90\n", "timer",
                     machine.timer * 1e6);
  out += fmt::format("  {:<12} {:>9.2f} us       a kernel that does nothing, code and parameters out of memory\n",
                     "launch", machine.launch * 1e6);
  out += fmt::format("  {:<12} {:>9.2f} us       a kernel of three reads, one after the other\n", "follow",
                     machine.follow * 1e6);
  if (report.rows.empty()) return out;
  return out + fmt::format("  the same before and after within {:.1f} %{}\n\n", 100 * report.drift(),
                           report.drift() > kVoidDrift ? ": the machine was not quiet, do not trust this run" : "");
}

}  // namespace

int BenchReport::wrong() const {
  return static_cast<int>(
      std::ranges::count_if(rows, [](const bench::Row& row) { return !row.check.failure.empty(); }));
}

std::vector<PeerSummary> BenchReport::peer_summaries() const {
  const bench::Machine machine = ceilings();
  std::vector<Ratios> parts;
  std::vector<Ratios> grids;
  const auto at = [](std::vector<Ratios>& list, const std::string& name) -> Ratios& {
    const auto found = std::ranges::find_if(list, [&](const Ratios& r) { return r.summary.cells == name; });
    if (found != list.end()) return *found;
    list.emplace_back().summary.cells = name;
    return list.back();
  };
  for (const bench::Row& row : rows) {
    if (!row.skipped.empty() || row.cell.empty()) continue;
    const bench::PeerTime peer = bench::peer_time(row, machine, bench::peer_tables());
    if (peer.measured <= 0) continue;
    const double r = ratio(peer.scaled, row.time.median);
    const std::size_t first = row.cell.find('/');
    at(parts, row.cell.substr(0, row.cell.find('/', first + 1))).add(row, r);
    const std::string grid = row.cell.substr(0, first) + "/*";
    at(grids, grid).add(row, r);
    if (const std::int64_t requests = requests_of(row.cell); requests > 0 && requests <= kFewRequests)
      at(grids, grid + " up to 16").add(row, r);
  }
  // Ops have a name each: one line for all of them.
  std::erase_if(parts, [](const Ratios& p) {
    return p.summary.cells.starts_with("ops/") || p.summary.cells.starts_with("indexer");
  });
  std::vector<PeerSummary> out;
  for (const Ratios& p : parts) out.push_back(p.finish());
  for (const Ratios& g : grids) out.push_back(g.finish());
  return out;
}

GpuNumbers gpu_numbers(const bench::Row& row, const bench::Machine& machine) {
  const double t = row.time.median;
  const bench::PeerTime peer = bench::peer_time(row, machine, bench::peer_tables());
  GpuNumbers n{.tflops = ratio(row.flops, t) * 1e-12,
               .gbs = ratio(row.bytes, t) * 1e-9,
               .floor = bench::floor_seconds(row, machine),
               .over_floor = 0,
               .peer = peer.measured,
               .peer_scaled = peer.scaled,
               .ratio = row.check.failure.empty() ? ratio(peer.scaled, t) : 0};
  n.over_floor = ratio(t, n.floor);
  return n;
}

std::string peer_line(const PeerSummary& s) {
  const std::string wrong = s.wrong > 0 ? fmt::format("; {} WRONG and not counted", s.wrong) : "";
  if (s.count == 0) return fmt::format("  {:<20} no right cell{}\n", s.cells, wrong);
  return fmt::format("  {:<20} {:>3} cells: {:.2f}x in the geometric mean, {:.2f}x at worst ({}){}\n", s.cells, s.count,
                     s.mean, s.worst, s.worst_cell, wrong);
}

std::string gpu_table(const BenchReport& report) {
  const bench::Machine machine = report.ceilings();
  std::string out = gpu_head(report, machine);
  if (report.rows.empty()) return out;
  out +=
      "times in us; floor: what the ceilings allow; peer: its time as it was measured; ratio: its time, scaled by "
      "ceilings, over ours\n\n";
  std::size_t shape = 5;
  std::size_t name = 4;
  for (const bench::Row& row : report.rows) {
    shape = std::max(shape, row.shape.size());
    name = std::max(name, row.group.size() + 1 + row.name.size());
  }
  out += fmt::format("{:<{}}  {:<{}}  {:>9}  {:>19}  {:>8} {:>7}  {:>9} {:>8}  {:>9} {:>7}  {:>8}  {}\n", "what", name,
                     "shape", shape, "median", "p10 .. p90", "TFLOP/s", "GB/s", "floor", "x floor", "peer", "ratio",
                     "l2", "implementation");
  for (const bench::Row& row : report.rows) {
    out += fmt::format("{:<{}}  {:<{}}  ", row.group + " " + row.name, name, row.shape, shape);
    if (!row.skipped.empty()) {
      out += "SKIP " + row.skipped + "\n";
      continue;
    }
    const GpuNumbers n = gpu_numbers(row, machine);
    const bool wrong = !row.check.failure.empty();
    out += fmt::format("{:>9.4g}  {:>19}  {:>8.1f} {:>7.0f}  {:>9.4g} {:>8.2f}  {:>9} {:>7}  {:>8}  {}\n",
                       row.time.median * 1e6, fmt::format("{:.4g} .. {:.4g}", row.time.p10 * 1e6, row.time.p90 * 1e6),
                       n.tflops, n.gbs, n.floor * 1e6, n.over_floor,
                       n.peer > 0 ? fmt::format("{:.4g}", n.peer * 1e6) : "-",
                       wrong ? "WRONG" : (n.ratio > 0 ? fmt::format("{:.2f}x", n.ratio) : "-"),
                       row.check.done ? fmt::format("{:.1e}", row.check.l2) : "-", row.implementation);
    if (wrong) out += "    WRONG: " + row.check.failure + "\n";
    std::string stages;
    for (const auto& [stage, value] : row.stages)
      stages += fmt::format("{}{} {:.4g}", stages.empty() ? "    " : ", ", stage, value);
    if (!stages.empty()) out += stages + "\n";
  }
  const std::vector<PeerSummary> summaries = report.peer_summaries();
  if (!summaries.empty()) out += "\nbeside the peers' kernels:\n";
  for (const PeerSummary& s : summaries) out += peer_line(s);
  for (const bench::PeerTable& table : bench::peer_tables()) {
    const bool used =
        std::ranges::any_of(report.rows, [&](const bench::Row& row) { return table.cells.contains(row.cell); });
    const double off = bench::ceiling_difference(table, machine);
    if (used && off > kVoidDrift) {
      out += fmt::format("  ceilings are {:.1f} % off those of {}'s run ({}): its ratios are VOID\n", 100 * off,
                         table.name, table.says.at("card"));
    }
  }
  if (report.wrong() > 0) out += fmt::format("\n{} of {} rows are WRONG\n", report.wrong(), report.rows.size());
  return out;
}

std::string gpu_csv(const BenchReport& report) {
  const bench::Machine machine = report.ceilings();
  std::string out =
      "group,name,shape,cell,implementation,runs,median_us,p10_us,p90_us,best_us,gflop,megabytes,tflops,gbs,floor_us,"
      "over_floor,peer_us,"
      "peer_scaled_us,peer_ratio,l2,check\n";
  const auto ceiling = [&](const std::string& name, const std::string& us, const std::string& tflops,
                           const std::string& gbs) {
    out += fmt::format("machine,{},{},,{},,{},,,,,,{},{},,,,,,,\n", name, csv_field(machine.gpu),
                       name == "product" ? machine.product : "", us, tflops, gbs);
  };
  for (const bench::Peak& p : machine.peaks) ceiling(p.name, "", fmt::format("{:.6g}", p.flops * 1e-12), "");
  for (const bench::Peak& b : machine.bandwidths) ceiling(b.name, "", "", fmt::format("{:.6g}", b.flops * 1e-9));
  ceiling("timer", fmt::format("{:.4g}", machine.timer * 1e6), "", "");
  ceiling("launch", fmt::format("{:.4g}", machine.launch * 1e6), "", "");
  ceiling("follow", fmt::format("{:.4g}", machine.follow * 1e6), "", "");
  for (const bench::Row& row : report.rows) {
    out += fmt::format("{},{},{},{},", row.group, csv_field(row.name), csv_field(row.shape), row.cell);
    if (!row.skipped.empty()) {
      out += ",0,,,,,,,,,,,,,,," + csv_field("SKIP " + row.skipped) + "\n";
      continue;
    }
    const GpuNumbers n = gpu_numbers(row, machine);
    const auto known = [](double value, double scale) {
      return value > 0 ? fmt::format("{:.6g}", value * scale) : std::string();
    };
    out += fmt::format(
        "{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{},{},{},{},{}\n",
        csv_field(row.implementation), row.time.runs, row.time.median * 1e6, row.time.p10 * 1e6, row.time.p90 * 1e6,
        row.time.best * 1e6, row.flops * 1e-9, row.bytes * 1e-6, n.tflops, n.gbs, n.floor * 1e6, n.over_floor,
        known(n.peer, 1e6), known(n.peer_scaled, 1e6), known(n.ratio, 1),
        row.check.done ? fmt::format("{:.3g}", row.check.l2) : "",
        csv_field(!row.check.done ? "" : (row.check.failure.empty() ? "ok" : "WRONG: " + row.check.failure)));
  }
  return out;
}

}  // namespace smla
