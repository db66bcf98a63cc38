#include "bench_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

namespace smla {

namespace {

/// A row's derived numbers.
struct Derived {
  double gflops = 0;
  double gbs = 0;
  double peak_share = 0;       ///< of the fp32 FMA peak
  double bandwidth_share = 0;  ///< of the read bandwidth
  double floor = 0;            ///< seconds
};

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

Derived derive(const bench::Row& row, const bench::Machine& machine) {
  const double t = row.time.median;
  return {.gflops = ratio(row.flops, t) * 1e-9,
          .gbs = ratio(row.bytes, t) * 1e-9,
          .peak_share = ratio(ratio(row.flops, t), machine.fp32_peak()),
          .bandwidth_share = ratio(ratio(row.bytes, t), row.read_bandwidth(machine)),
          .floor = bench::floor_seconds(row, machine)};
}

nlohmann::ordered_json machine_json(const bench::Machine& machine) {
  nlohmann::ordered_json peaks = nlohmann::ordered_json::object();
  for (const bench::Peak& peak : machine.peaks) peaks[peak.name] = peak.flops * 1e-9;
  if (!machine.gpu.empty()) {
    nlohmann::ordered_json bandwidths = nlohmann::ordered_json::object();
    for (const bench::Peak& b : machine.bandwidths) bandwidths[b.name] = b.flops * 1e-9;
    return {{"peak_gflops", peaks},
            {"bandwidth_gbs", bandwidths},
            {"timer_us", machine.timer * 1e6},
            {"launch_us", machine.launch * 1e6},
            {"follow_us", machine.follow * 1e6},
            {"product", machine.product}};
  }
  return {{"peak_gflops", peaks},
          {"fp32_peak_gflops", machine.fp32_peak() * 1e-9},
          {"read_gbs", machine.read_bandwidth * 1e-9}};
}

/// What a row's time and work are on any machine.
nlohmann::ordered_json measured_json(const bench::Row& row) {
  return {{"implementation", row.implementation},
          {"runs", row.time.runs},
          {"median_ms", row.time.median * 1e3},
          {"p10_ms", row.time.p10 * 1e3},
          {"p90_ms", row.time.p90 * 1e3},
          {"best_ms", row.time.best * 1e3},
          {"gflop", row.flops * 1e-9},
          {"megabytes", row.bytes * 1e-6}};
}

nlohmann::ordered_json gpu_row_json(const bench::Row& row, const bench::Machine& machine) {
  nlohmann::ordered_json out{{"group", row.group}, {"name", row.name}, {"shape", row.shape}, {"cell", row.cell}};
  if (!row.skipped.empty()) {
    out["skipped"] = row.skipped;
    return out;
  }
  const GpuNumbers n = gpu_numbers(row, machine);
  out.update(measured_json(row));
  out.update({{"gflops", n.tflops * 1e3},
              {"gbs", n.gbs},
              {"product_rate", row.product_rate},
              {"traffic", row.traffic == bench::Traffic::kGather ? "gather" : "copy"},
              {"floor_ms", n.floor * 1e3},
              {"over_floor", n.over_floor}});
  if (row.check.done) {
    out["l2"] = row.check.l2;
    out["check"] = row.check.failure.empty() ? "ok" : "WRONG: " + row.check.failure;
  }
  for (const auto& [name, value] : row.stages) out["stages"][name] = value;
  if (n.peer > 0) {
    out["peer_ms"] = n.peer * 1e3;
    out["peer_scaled_ms"] = n.peer_scaled * 1e3;
    if (n.ratio > 0) out["peer_ratio"] = n.ratio;
  }
  return out;
}

std::string spread(const bench::Timing& time) {
  return fmt::format("{:.4g} .. {:.4g}", time.p10 * 1e3, time.p90 * 1e3);
}

}  // namespace

bench::Machine BenchReport::ceilings() const {
  bench::Machine out = before;
  for (bench::Peak& peak : out.peaks) peak.flops = std::max(peak.flops, after.peak(peak.name));
  out.read_bandwidth = std::max(before.read_bandwidth, after.read_bandwidth);
  for (bench::Peak& b : out.bandwidths) b.flops = std::max(b.flops, after.bandwidth(b.name));
  out.timer = std::max(before.timer, after.timer);
  out.launch = std::min(before.launch, after.launch);
  out.follow = std::min(before.follow, after.follow);
  return out;
}

double BenchReport::drift() const {
  const auto moved = [](double a, double b) { return ratio(std::abs(a - b), std::max(a, b)); };
  if (on_gpu()) {
    double most = 0;
    for (const bench::Peak& p : before.peaks) most = std::max(most, moved(p.flops, after.peak(p.name)));
    for (const bench::Peak& b : before.bandwidths) most = std::max(most, moved(b.flops, after.bandwidth(b.name)));
    return most;
  }
  return std::max({moved(before.fp32_peak(), after.fp32_peak()), moved(before.bf16_peak(), after.bf16_peak()),
                   moved(before.read_bandwidth, after.read_bandwidth)});
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string bench_table(const BenchReport& report) {
  if (report.on_gpu()) return gpu_table(report);
  const bench::Machine machine = report.ceilings();
  std::string out = fmt::format("CPU {}, {} of {} processors\n", machine.cpu, machine.threads, machine.cores);
  for (const bench::Peak& peak : machine.peaks) {
    out += fmt::format("  {:<12} {:>9.1f} GFLOP/s  {}\n", peak.name, peak.flops * 1e-9,
                       peak.name == "avx512_bf16" ? "bf16 dot products, fp32 sums" : "fp32 multiply-adds");
  }
  out += fmt::format("  {:<12} {:>9.1f} GB/s\n", "memory", machine.read_bandwidth * 1e-9);
  if (report.rows.empty()) return out;
  out += fmt::format("  the same before and after within {:.1f} %{}\n\n", 100 * report.drift(),
                     report.drift() > kVoidDrift ? ": the machine was not quiet, do not trust this run" : "");
  out += fmt::format(
      "model {}; times in ms; peak: share of the fp32 peak; read: share of the memory bandwidth, of decode steps and "
      "their projections that of reading in turn with them; floor: what the ceilings allow\n\n",
      report.model);
  std::size_t shape = 5;
  std::size_t name = 4;
  for (const bench::Row& row : report.rows) {
    shape = std::max(shape, row.shape.size());
    name = std::max(name, row.group.size() + 1 + row.name.size());
  }
  out += fmt::format("{:<{}}  {:<{}}  {:>9}  {:>19}  {:>8} {:>7}  {:>6} {:>6}  {:>9}  {}\n", "what", name, "shape",
                     shape, "median", "p10 .. p90", "GFLOP/s", "GB/s", "peak", "read", "floor", "implementation");
  for (const bench::Row& row : report.rows) {
    const Derived d = derive(row, machine);
    out += fmt::format("{:<{}}  {:<{}}  {:>9.4g}  {:>19}  {:>8.1f} {:>7.2f}  {:>4.0f} % {:>4.0f} %  {:>9.4g}  {}\n",
                       row.group + " " + row.name, name, row.shape, shape, row.time.median * 1e3, spread(row.time),
                       d.gflops, d.gbs, 100 * d.peak_share, 100 * d.bandwidth_share, d.floor * 1e3,
                       row.stages.empty() ? row.implementation : "");
    std::string stages;
    for (const auto& [stage, share] : row.stages)
      stages += fmt::format("{}{} {:.1f} %", stages.empty() ? "    " : ", ", stage, 100 * share);
    if (!stages.empty()) out += stages + "\n    " + row.implementation + "\n";
  }
  return out;
}

std::string bench_csv(const BenchReport& report) {
  if (report.on_gpu()) return gpu_csv(report);
  const bench::Machine machine = report.ceilings();
  std::string out =
      "group,name,shape,implementation,threads,runs,median_ms,p10_ms,p90_ms,best_ms,gflop,megabytes,gflops,gbs,fp32_"
      "peak_share,"
      "reading_gbs,bandwidth_share,floor_ms,stages\n";
  const auto ceiling = [&](const std::string& name, const std::string& gflops, const std::string& gbs) {
    out += fmt::format("machine,{},{},,{},,,,,,,,{},{},,,,,\n", name, csv_field(machine.cpu), machine.threads, gflops,
                       gbs);
  };
  for (const bench::Peak& peak : machine.peaks) ceiling(peak.name, fmt::format("{:.6g}", peak.flops * 1e-9), "");
  ceiling("memory", "", fmt::format("{:.6g}", machine.read_bandwidth * 1e-9));
  for (const bench::Row& row : report.rows) {
    const Derived d = derive(row, machine);
    std::string stages;
    for (const auto& [stage, share] : row.stages)
      stages += fmt::format("{}{}={:.4f}", stages.empty() ? "" : ";", stage, share);
    out += fmt::format(
        "{},{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{}\n",
        row.group, csv_field(row.name), csv_field(row.shape), csv_field(row.implementation), machine.threads,
        row.time.runs, row.time.median * 1e3, row.time.p10 * 1e3, row.time.p90 * 1e3, row.time.best * 1e3,
        row.flops * 1e-9, row.bytes * 1e-6, d.gflops, d.gbs, d.peak_share, row.read_bandwidth(machine) * 1e-9,
        d.bandwidth_share, d.floor * 1e3, csv_field(stages));
  }
  return out;
}

std::string bench_json(const BenchReport& report) {
  const bench::Machine machine = report.ceilings();
  nlohmann::ordered_json out;
  out["format"] = "smla-bench/1";
  out["version"] = SMLA_VERSION;
  out["date"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  out["cpu"] = machine.cpu;
  out["cores"] = machine.cores;
  out["threads"] = machine.threads;
  out["clock"] = report.clock;
  out["model"] = report.model;
  out["command"] = report.command;
  if (report.on_gpu()) {
    out["device"] = machine.gpu;
    out["driver"] = machine.driver;
    out["cuda"] = machine.cuda;
  }
  out["machine"] = machine_json(machine);
  out["machine"]["before"] = machine_json(report.before);
  out["machine"]["after"] = machine_json(report.after);
  out["machine"]["drift"] = report.drift();
  out["rows"] = nlohmann::ordered_json::array();
  if (report.on_gpu()) {
    for (const bench::Row& row : report.rows) out["rows"].push_back(gpu_row_json(row, machine));
    out["peers"] = nlohmann::ordered_json::array();
    for (const PeerSummary& s : report.peer_summaries()) {
      out["peers"].push_back({{"cells", s.cells},
                              {"count", s.count},
                              {"wrong", s.wrong},
                              {"geometric_mean", s.mean},
                              {"worst", s.worst},
                              {"worst_cell", s.worst_cell}});
    }
  }
  for (const bench::Row& row : report.on_gpu() ? std::vector<bench::Row>{} : report.rows) {
    const Derived d = derive(row, machine);
    nlohmann::ordered_json stages = nlohmann::ordered_json::object();
    for (const auto& [stage, share] : row.stages) stages[stage] = share;
    nlohmann::ordered_json line{{"group", row.group}, {"name", row.name}, {"shape", row.shape}};
    line.update(measured_json(row));
    line.update({{"bf16", row.bf16},
                 {"gflops", d.gflops},
                 {"gbs", d.gbs},
                 {"fp32_peak_share", d.peak_share},
                 {"reading_gbs", row.read_bandwidth(machine) * 1e-9},
                 {"reading_in_turn", row.time.reading > 0},
                 {"bandwidth_share", d.bandwidth_share},
                 {"floor_ms", d.floor * 1e3},
                 {"stages", stages}});
    out["rows"].push_back(std::move(line));
  }
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace smla
