#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>

#include "ops/projection/implementations.h"

// Large bf16 x bf16 projections on CPUs that multiply bf16 natively. float32 stays with the own kernels
// (docs/kernels/projection.md has the numbers). E4M3 weights become bf16 a panel of outputs at a time, which is exact
// where their scales are powers of two; where they are not, the own kernel runs. NVFP4 weights do so but for their
// scale of all, which multiplies the sums.
//
// oneDNN's blocked GEMM wants dense matrices, so strided rows are copied; rows go in chunks, which bounds the copies
// and the number of primitives.

namespace smla {

namespace {

constexpr std::int64_t kChunkRows = 512;
constexpr std::int64_t kMinRows =
    20;  // below, the weights' way from memory is the limit: the own kernels stream them without packing
constexpr std::int64_t kMinRowsOfCodes = 32;                 // every call widens the weights
constexpr std::int64_t kPanelBytes = std::int64_t{8} << 20;  // of widened weights: they stay in the last cache
constexpr std::size_t kCacheCapacity = 512;
constexpr std::int64_t kMostSize = 1 << 24;  // it divides by 0 where a size in bytes overflows
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// oneDNN fixes its partition when a primitive is made and starts its threads when it runs: both ask OpenMP of the
/// calling thread.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadsGuard() { omp_set_num_threads(before_); }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int before_;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// Whether weights become bf16 a panel at a time.
bool has_codes(const ProjectionProblem& p) { return p.w == DType::kE4M3 || p.w == Projection::kNvfp4; }

/// A dense [rows, k] x [n, k]^T product, made once; of NVFP4 weights it takes a factor.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory::desc x, w, y, scratch;
  std::string implementation;
};

Product make_product(std::int64_t rows, const ProjectionProblem& p, int threads) {
  using dnnl::memory;
  const ThreadsGuard guard(threads);
  Product out;
  out.x = memory::desc({rows, p.k}, memory::data_type::bf16, memory::dims{p.k, 1});
  out.w = memory::desc({p.k, p.n}, memory::data_type::bf16, memory::dims{1, p.k});
  out.y = memory::desc({rows, p.n}, p.y == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32,
                       memory::dims{p.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.w == Projection::kNvfp4) attributes.set_output_scales(0, {DNNL_RUNTIME_F32_VAL});
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(out.x, out.w, out.y), attributes, cpu_engine());
  out.implementation = description.impl_info_str();
  out.scratch = description.scratchpad_desc();
  out.primitive = dnnl::matmul(description);
  return out;
}

/// The product of `rows` rows of this problem; making one takes about half a millisecond, finding one about a
/// microsecond.
Product product(std::int64_t rows, const ProjectionProblem& p, int threads) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, bool, int>;
  static std::mutex mutex;
  static std::map<Key, Product> cache;
  const Key key{rows, p.n, p.k, p.y, p.w == Projection::kNvfp4, threads};
  const std::lock_guard lock(mutex);
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() >= kCacheCapacity) cache.clear();
  return cache.emplace(key, make_product(rows, p, threads)).first->second;
}

std::int64_t chunk_rows(const ProjectionProblem& p) { return std::min(p.m, kChunkRows); }
std::int64_t last_rows(const ProjectionProblem& p) {
  return p.m % chunk_rows(p) == 0 ? chunk_rows(p) : p.m % chunk_rows(p);
}

/// The product of one panel of outputs: all of them with bf16 weights.
ProjectionProblem panel_of(const ProjectionProblem& p, std::int64_t outputs) {
  ProjectionProblem out = p;
  out.n = std::min(p.n, outputs);
  return out;
}

std::int64_t panel_outputs(const ProjectionProblem& p) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  if (!has_codes(p)) return p.n;
  return std::min(p.n, std::max(kPanelBytes / (p.k * size_of(DType::kBF16)) / kBlock, std::int64_t{1}) * kBlock);
}

std::int64_t last_outputs(const ProjectionProblem& p) {
  const std::int64_t panel = panel_outputs(p);
  return p.n % panel == 0 ? panel : p.n % panel;
}

/// Where the copies, widened weights and oneDNN's scratch lie in the workspace.
struct Layout {
  std::size_t y = 0, w = 0, scratch = 0, total = 0;
};

Layout layout(const ProjectionProblem& p, int threads) {
  const auto rows = static_cast<std::size_t>(chunk_rows(p));
  const auto outputs = static_cast<std::size_t>(panel_outputs(p));
  Layout l;
  l.y = aligned(rows * static_cast<std::size_t>(p.k * size_of(p.x)));
  l.w = l.y + aligned(rows * outputs * static_cast<std::size_t>(size_of(p.y)));
  l.scratch = l.w;
  if (has_codes(p)) l.scratch += aligned(outputs * static_cast<std::size_t>(p.k * size_of(DType::kBF16)));
  std::size_t scratch = 0;
  for (const std::int64_t m : {chunk_rows(p), last_rows(p)}) {
    for (const std::int64_t n : {panel_outputs(p), last_outputs(p)})
      scratch = std::max(scratch, product(m, panel_of(p, n), threads).scratch.get_size());
  }
  l.total = l.scratch + scratch;
  if (p.w == DType::kE4M3) l.total = std::max(l.total, projection_cpu_workspace(p, threads));
  return l;
}

/// Whether codes times these scales are bf16 numbers, and no small ones.
bool has_exact_scales(const ProjectionProblem& p, const ConstTensorView& scales) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  constexpr int kMostExponent = 100;
  for (std::int64_t g = 0; g < p.groups; ++g) {
    for (std::int64_t n = 0; n < p.n; n += kBlock) {
      for (std::int64_t k = 0; k < p.k; k += kBlock) {
        int exponent = 0;
        if (std::frexp(w_scale_of(scales, g, n, k), &exponent) != 0.5F || std::abs(exponent) > kMostExponent)
          return false;
      }
    }
  }
  return true;
}

/// Outputs [first, first + outputs) of a group's E4M3 weights, or of its NVFP4 ones but for the scale of all, as bf16.
void widen(const ProjectionProblem& p, const Projection::Args& a, std::int64_t group, std::int64_t first,
           std::int64_t outputs, BF16* to, int threads) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  const std::int64_t begin = (group * p.n + first) * p.k;
  if (p.w == Projection::kNvfp4) {
    const std::uint8_t* bytes = static_cast<const std::uint8_t*>(a.w.data) + begin / 2;
    const E4M3* scales = static_cast<const E4M3*>(a.w_scale.data) + begin / Projection::kNvfp4Group;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t j = 0; j < outputs; ++j) {
      projection_widen_nvfp4_avx512(bytes + j * p.k / 2, scales + j * p.k / Projection::kNvfp4Group, p.k, to + j * p.k);
    }
    return;
  }
  const E4M3* codes = static_cast<const E4M3*>(a.w.data) + begin;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t j = 0; j < outputs; ++j) {
    for (std::int64_t k = 0; k < p.k; k += kBlock) {
      projection_widen_avx512(codes + j * p.k + k, w_scale_of(a.w_scale, group, first + j, k),
                              std::min(kBlock, p.k - k), to + j * p.k + k);
    }
  }
}

void copy_rows(const char* from, std::int64_t from_bytes, char* to, std::int64_t to_bytes, std::int64_t rows,
               std::int64_t row_bytes, int threads) {
#pragma omp parallel for num_threads(threads)
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * to_bytes, from + i * from_bytes, static_cast<std::size_t>(row_bytes));
}

void run(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  const bool nvfp4 = p.w == Projection::kNvfp4;
  if (p.w == DType::kE4M3 && !has_exact_scales(p, a.w_scale)) return projection_avx512(p, a, context);
  const Layout l = layout(p, context.threads);
  char* const base = static_cast<char*>(context.workspace.data);
  const ThreadsGuard guard(context.threads);
  dnnl::stream stream(cpu_engine());
  const std::int64_t panel = panel_outputs(p);
  const std::int64_t x_row = p.k * size_of(p.x);
  const std::int64_t x_stride = a.x.stride[0] * size_of(p.x);
  const std::int64_t y_stride = a.y.stride[0] * size_of(p.y);
  for (std::int64_t g = 0; g < p.groups; ++g) {
    for (std::int64_t j = 0; j < p.n; j += panel) {
      const ProjectionProblem part = panel_of(p, std::min(panel, p.n - j));
      const std::int64_t y_row = part.n * size_of(p.y);
      const char* w = static_cast<const char*>(a.w.data) + (g * p.n + j) * p.k * size_of(p.w);
      if (has_codes(p)) {
        auto* widened = reinterpret_cast<BF16*>(base + l.w);
        widen(p, a, g, j, part.n, widened, context.threads);
        w = base + l.w;
      }
      for (std::int64_t i = 0; i < p.m; i += kChunkRows) {
        const std::int64_t rows = std::min(kChunkRows, p.m - i);
        const char* x = static_cast<const char*>(a.x.data) + i * x_stride + g * a.x.stride[1] * size_of(p.x);
        char* y = static_cast<char*>(a.y.data) + i * y_stride + (g * a.y.stride[1] + j) * size_of(p.y);
        const bool x_dense = x_stride == x_row;
        const bool y_dense = y_stride == y_row;
        if (!x_dense) copy_rows(x, x_stride, base, x_row, rows, x_row, context.threads);

        const Product made = product(rows, part, context.threads);
        // The library takes sources as void*; it does not write them.
        const dnnl::memory x_memory(made.x, cpu_engine(), const_cast<char*>(x_dense ? x : base));
        const dnnl::memory w_memory(made.w, cpu_engine(), const_cast<char*>(w));
        const dnnl::memory y_memory(made.y, cpu_engine(), y_dense ? y : base + l.y);
        const dnnl::memory scratch(made.scratch, cpu_engine(), base + l.scratch);
        std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, x_memory},
                                                        {DNNL_ARG_WEIGHTS, w_memory},
                                                        {DNNL_ARG_DST, y_memory},
                                                        {DNNL_ARG_SCRATCHPAD, scratch}};
        if (nvfp4) {
          const dnnl::memory::desc one({1}, dnnl::memory::data_type::f32, dnnl::memory::dims{1});
          arguments.emplace(DNNL_ARG_ATTR_OUTPUT_SCALES,
                            dnnl::memory(one, cpu_engine(), const_cast<void*>(a.w_global_scale.data)));
        }
        made.primitive.execute(stream, arguments);
        stream.wait();

        if (!y_dense) copy_rows(base + l.y, y_row, y, y_stride, rows, y_row, context.threads);
      }
    }
  }
}

/// Why it does not take a problem; empty where it may.
std::string refusal(const ProjectionProblem& problem, const PlanOptions& options, const Machine& machine) {
  if (options.deterministic)
    return "oneDNN picks its blocking by the number of rows: a row's bits could depend on its neighbours";
  if (problem.x != DType::kBF16 || problem.w == DType::kF32)
    return "only BF16 x BF16, F8_E4M3 or NVFP4: float32 products stay with the own kernels";
  if (!machine.cpu->avx512_bf16 && !machine.cpu->amx_bf16)
    return "this CPU has no native bf16 products (AVX512_BF16 or AMX)";
  if (std::string reason = has_codes(problem) ? needs_avx512(machine) : ""; !reason.empty()) return reason;
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bf16_isa = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  if ((isa & bf16_isa) != bf16_isa) return "oneDNN is kept from using native bf16 products (ONEDNN_MAX_CPU_ISA)";
  if (problem.n == 0 || problem.k == 0) return "nothing to multiply";
  if (problem.n > kMostSize || problem.k > kMostSize)
    return "got n = " + std::to_string(problem.n) + ", k = " + std::to_string(problem.k) +
           ": oneDNN counts in 32 bits, n and k go up to " + std::to_string(kMostSize);
  const std::int64_t least = has_codes(problem) ? kMinRowsOfCodes : kMinRows;
  if (problem.m < least) {
    return "got m = " + std::to_string(problem.m) + ": below " + std::to_string(least) +
           " rows the own kernels are faster";
  }
  return "";
}

}  // namespace

Decision projection_onednn_decide(const ProjectionProblem& problem, const PlanOptions& options,
                                  const Machine& machine) {
  if (std::string reason = refusal(problem, options, machine); !reason.empty()) return refused(std::move(reason));
  try {
    const Product made = product(chunk_rows(problem), panel_of(problem, panel_outputs(problem)), machine.threads);
    if (made.implementation.rfind("ref", 0) == 0) return refused("oneDNN has no fast implementation of this shape");
    Decision decision;
    decision.workspace_bytes = layout(problem, machine.threads).total;
    return decision;
  } catch (const dnnl::error& error) {
    return refused(std::string("oneDNN refuses this shape: ") + error.what());
  }
}

void projection_onednn(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  try {
    run(problem, args, context);
  } catch (const dnnl::error& error) {
    throw Error(std::string("projection: oneDNN: ") + error.what());
  }
}

}  // namespace smla
