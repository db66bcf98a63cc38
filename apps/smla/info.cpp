#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "ops/catalog.h"
#include "ops/decision.h"
#include "output_file.h"
#include "sparsemla/device.h"
#include "sparsemla/model_config.h"

namespace smla {

namespace {

/// Whether a library-backed implementation of some op exists in this build, and why not.
struct LibraryUse {
  bool present = false;
  std::string reason = "not in this build";
};

LibraryUse find_library(std::string_view implementation) {
  for (const OpInfo& op : op_catalog()) {
    for (const Candidate& candidate : op.candidates({})) {
      if (candidate.name != implementation) continue;
      return {.present = candidate.refusal.empty(), .reason = candidate.refusal};
    }
  }
  return {};
}

/// An op's candidates, each with what it says on its own device.
std::vector<Candidate> candidates_of(const OpInfo& op) {
  std::vector<Candidate> all = op.candidates({});
  const std::vector<Candidate> gpu = op.candidates({.device = DeviceKind::kCuda});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!gpu[i].refusal.starts_with("runs on ")) all[i].refusal = gpu[i].refusal;
  }
  return all;
}

/// The first candidate that accepts, as Plan would choose it; empty where there is none.
std::string name_of_chosen(const std::vector<Candidate>& candidates) {
  const auto found = std::ranges::find_if(candidates, [](const Candidate& c) { return c.refusal.empty(); });
  return found == candidates.end() ? "" : found->name;
}

/// Why there is no GPU stands once, at the top.
std::string briefly(const std::string& refusal) {
  constexpr std::string_view kNoGpu = "no GPU";
  return refusal.starts_with(std::string(kNoGpu) + ": ") ? std::string(kNoGpu) : refusal;
}

const char* yes_no(bool value) { return value ? "yes" : "no"; }

void print_text() {
  const CpuFeatures& cpu = cpu_features();
  fmt::print("smla {}\n\n", SMLA_VERSION);
  fmt::print("CPU      {}\n", cpu.model);
  fmt::print("         {} processors, {} threads by default\n", cpu.cores, resolve_threads(0));
  fmt::print("         AVX2+FMA+F16C {}, AVX-512 F/BW/DQ/VL {}, AVX-512 BF16 {}, VBMI {}, AMX BF16 {}\n",
             yes_no(cpu.avx2), yes_no(cpu.avx512), yes_no(cpu.avx512_bf16), yes_no(cpu.avx512_vbmi),
             yes_no(cpu.amx_bf16));
  std::string reason;
  const std::vector<GpuInfo> devices = gpus(&reason);
  if (devices.empty()) fmt::print("GPU      none: {}\n", reason);
  for (const GpuInfo& gpu : devices) {
    fmt::print("GPU      {}, sm_{}{}, {} multiprocessors, {:.1f} GiB\n", gpu.name, gpu.major, gpu.minor,
               gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / (1 << 30));
  }
  fmt::print("CUDA     {}\n", built_with_cuda() ? "in this build" : "not in this build");
  const LibraryUse onednn = find_library("onednn");
  fmt::print("oneDNN   {}{}\n", yes_no(onednn.present), onednn.present ? "" : ": " + onednn.reason);
  fmt::print("models   {}\n\n", fmt::join(model_preset_names(), ", "));

  fmt::print(
      "Implementations, best first; * would run here for the typical problem in parentheses, on the CPU\nand on a "
      "GPU.\n");
  for (const OpInfo& op : op_catalog()) {
    const std::vector<Candidate> candidates = candidates_of(op);
    const std::string best = name_of_chosen(op.candidates({}));
    const std::string best_gpu = name_of_chosen(op.candidates({.device = DeviceKind::kCuda}));
    fmt::print("\n{}  ({})\n", op.name, op.problem);
    for (const Candidate& candidate : candidates) {
      fmt::print("  {} {:<11} {}{}\n", candidate.name == best || candidate.name == best_gpu ? '*' : ' ', candidate.name,
                 candidate.machine, candidate.refusal.empty() ? "" : "; no: " + briefly(candidate.refusal));
    }
  }
}

std::string info_json() {
  const CpuFeatures& cpu = cpu_features();
  nlohmann::ordered_json out;
  out["version"] = SMLA_VERSION;
  out["cpu"] = {{"model", cpu.model},
                {"cores", cpu.cores},
                {"threads", resolve_threads(0)},
                {"avx2", cpu.avx2},
                {"avx512", cpu.avx512},
                {"avx512_bf16", cpu.avx512_bf16},
                {"avx512_vbmi", cpu.avx512_vbmi},
                {"amx_bf16", cpu.amx_bf16}};
  std::string reason;
  out["gpus"] = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : gpus(&reason)) {
    out["gpus"].push_back({{"name", gpu.name},
                           {"major", gpu.major},
                           {"minor", gpu.minor},
                           {"multiprocessors", gpu.multiprocessors},
                           {"memory_bytes", gpu.memory_bytes}});
  }
  out["no_gpu_reason"] = reason;
  out["cuda"] = built_with_cuda();
  const LibraryUse onednn = find_library("onednn");
  out["onednn"] = {{"present", onednn.present}, {"reason", onednn.present ? "" : onednn.reason}};
  out["models"] = model_preset_names();
  out["ops"] = nlohmann::ordered_json::array();
  for (const OpInfo& op : op_catalog()) {
    const std::vector<Candidate> candidates = candidates_of(op);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Candidate& c : candidates)
      list.push_back({{"name", c.name}, {"machine", c.machine}, {"refusal", c.refusal}});
    out["ops"].push_back({{"name", op.name},
                          {"family", op.family},
                          {"problem", op.problem},
                          {"runs", name_of_chosen(op.candidates({}))},
                          {"runs_on_gpu", name_of_chosen(op.candidates({.device = DeviceKind::kCuda}))},
                          {"implementations", list}});
  }
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "info", "Show this machine, every op's implementations, what runs here, what is missing and why");
  command->add_option("--json", *json, "Also write this to FILE as JSON; - writes JSON alone to stdout");
  command->footer("SMLA_CPU=generic|avx2|avx512 in the environment hides everything above that level.");
  command->callback([json, &exit_code] {
    OutputFile file("--json", *json);
    if (!file.is_stdout()) print_text();
    if (file.wanted()) file.write(info_json());
    exit_code = kExitPass;
  });
}

}  // namespace smla
