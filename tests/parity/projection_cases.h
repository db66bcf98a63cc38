#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/codecs.h"
#include "parity/quantised_rows.h"
#include "sparsemla/ops/projection.h"

namespace smla::test {

/// A projection with seeded inputs. Gaps lie between rows (x and y are column slices of wider matrices) and, for y, the
/// groups may come first.
struct ProjectionCase {
  Projection::Problem problem;
  std::int64_t x_gap = 0;  ///< elements between one row of x and the next
  std::int64_t y_gap = 0;
  bool y_group_major = false;  ///< y stored as [groups, m, n]
  std::uint64_t seed = 1;
  std::int64_t scale_gap = 0;    ///< E4M3 x: rows that the scales have beyond m
  std::int64_t w_scale_gap = 0;  ///< E4M3 w: scales between those of one block of outputs and the next
};

inline std::string describe(const ProjectionCase& c) {
  const Projection::Problem& p = c.problem;
  const auto name = [](DType d) { return std::string(name_of(d)); };
  const std::string scales = p.x != DType::kE4M3              ? ""
                             : p.x_scale == OutputScale::kF32 ? " (f32 scales)"
                                                              : " (ue8m0x4 scales)";
  return "m " + std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k) + " groups " +
         std::to_string(p.groups) + " " + name(p.x) + scales + " x " + name(p.w) + " -> " + name(p.y) + " gaps " +
         std::to_string(c.x_gap) + " " + std::to_string(c.y_gap) + (c.y_group_major ? " group-major" : "") + " seed " +
         std::to_string(c.seed);
}

/// Uniform in [-1, 1); a plain 64-bit mixer, so that every platform draws the same numbers.
class ProjectionRandom {
 public:
  explicit ProjectionRandom(std::uint64_t seed) : state_(seed * 0x9E37'79B9'7F4A'7C15ULL + 1) {}
  float next() {
    state_ += 0x9E37'79B9'7F4A'7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBULL;
    return static_cast<float>(static_cast<std::int64_t>((z ^ (z >> 31)) >> 40) - (1 << 23)) * 0x1p-23F;
  }

 private:
  std::uint64_t state_;
};

/// Elements of one dtype as bytes; unset elements are NaN.
class ProjectionBuffer {
 public:
  ProjectionBuffer(DType dtype, std::int64_t elements)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(elements * size_of(dtype)), 0xFF) {}
  void set(std::int64_t at, float value) {
    if (dtype_ == DType::kBF16) {
      put(at, to_bf16(value));
    } else if (dtype_ == DType::kE4M3) {
      put(at, to_e4m3(value * 448.0F));
    } else if (dtype_ == DType::kU8) {
      put(at, static_cast<std::uint8_t>((value + 1.0F) * 128.0F));
    } else {
      put(at, value);
    }
  }
  float get(std::int64_t at) const { return dtype_ == DType::kBF16 ? to_float(take<BF16>(at)) : take<float>(at); }
  bool poisoned(std::int64_t at) const {
    const auto size = static_cast<std::size_t>(size_of(dtype_));
    for (std::size_t b = 0; b < size; ++b) {
      if (bytes_[static_cast<std::size_t>(at) * size + b] != 0xFF) return false;
    }
    return true;
  }
  DType dtype() const { return dtype_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  bool same_bits(const ProjectionBuffer& other) const { return bytes_ == other.bytes_; }
  bool same_bits(const ProjectionBuffer& other, std::int64_t at) const {
    const auto size = static_cast<std::size_t>(size_of(dtype_));
    return std::memcmp(bytes_.data() + static_cast<std::size_t>(at) * size,
                       other.bytes_.data() + static_cast<std::size_t>(at) * size, size) == 0;
  }
  std::int64_t elements() const { return static_cast<std::int64_t>(bytes_.size()) / size_of(dtype_); }

 private:
  template <class T>
  void put(std::int64_t at, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(at) * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T take(std::int64_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(at) * sizeof(T), sizeof(T));
    return value;
  }
  DType dtype_;
  std::vector<unsigned char> bytes_;
};

/// The tensors of a case. `y` is poisoned; the last row of x and y has no gap behind it.
struct ProjectionTensors {
  explicit ProjectionTensors(const ProjectionCase& c)
      : problem(c.problem),
        x_row(c.problem.groups * c.problem.k + c.x_gap),
        y_stride_m(c.y_group_major ? c.problem.n + c.y_gap : c.problem.groups * c.problem.n + c.y_gap),
        y_stride_g(c.y_group_major ? c.problem.m * y_stride_m : c.problem.n),
        x(problem.x, problem.m == 0 ? 0 : (problem.m - 1) * x_row + problem.groups * problem.k),
        w(problem.w, problem.groups * problem.n * problem.k / (nvfp4() ? 2 : 1)),
        scale_rows(problem.x_scale == OutputScale::kF32 ? chunks() : (chunks() + 3) / 4),
        scale_columns(problem.m + c.scale_gap),
        scales(DType::kF32, problem.x == DType::kE4M3 ? problem.groups * scale_rows * scale_columns : 0),
        w_scale_rows(nvfp4() ? problem.n : (problem.n + 127) / 128),
        w_scale_columns(nvfp4() ? problem.k / Projection::kNvfp4Group : (problem.k + 127) / 128),
        w_scale_stride(w_scale_columns + (nvfp4() ? 0 : c.w_scale_gap)),
        w_scales(nvfp4() ? DType::kE4M3 : DType::kF32,
                 problem.w == DType::kE4M3 || nvfp4() ? problem.groups * w_scale_rows * w_scale_stride : 0),
        w_global(0x1.8p-9F),
        y(poisoned_y()) {
    ProjectionRandom random(c.seed);
    for (std::int64_t i = 0; i < problem.m; ++i) {
      for (std::int64_t j = 0; j < problem.groups * problem.k; ++j) x.set(i * x_row + j, random.next());
    }
    for (std::int64_t i = 0; i < w.elements(); ++i) w.set(i, random.next());
    for (std::int64_t i = 0; i < scales.elements(); ++i) set_scale(i, random);
    for (std::int64_t i = 0; nvfp4() && i < w_scales.elements(); ++i)  // 2 to 448
      w_scales.set(i, std::exp2(-4.0F + 4.0F * random.next()));
    for (std::int64_t i = 0; !nvfp4() && i < w_scales.elements();
         ++i) {  // any numbers about 2^-9; NaN where no block is
      if (i % w_scale_stride < w_scale_columns) w_scales.set(i, (1.5F + random.next()) * 0x1p-9F);
    }
  }

  bool nvfp4() const { return problem.w == Projection::kNvfp4; }
  ProjectionBuffer poisoned_y() const {
    const bool empty = problem.m == 0 || problem.n == 0;
    return {problem.y, empty ? 0 : (problem.m - 1) * y_stride_m + (problem.groups - 1) * y_stride_g + problem.n};
  }
  std::int64_t chunks() const { return problem.k / Projection::kScaleGroup; }
  /// Powers of two about 2^-9; NaN where no row is. The packed form has four in a word.
  void set_scale(std::int64_t at, ProjectionRandom& random) {
    std::uint32_t bytes[4];
    for (std::uint32_t& byte : bytes) byte = static_cast<std::uint32_t>(118.0F + random.next() * 6.0F);
    if (at % scale_columns >= problem.m) {
      scales.set(at, from_ue8m0(255));
    } else if (problem.x_scale == OutputScale::kF32) {
      scales.set(at, from_ue8m0(static_cast<std::uint8_t>(bytes[0])));
    } else {
      scales.set(at, std::bit_cast<float>(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24));
    }
  }
  std::int64_t y_at(std::int64_t i, std::int64_t g, std::int64_t j) const {
    return i * y_stride_m + g * y_stride_g + j;
  }
  Projection::Args args(ProjectionBuffer& out) const {
    Projection::Args a{ConstTensorView(x.data(), problem.x, {problem.m, problem.groups, problem.k}),
                       ConstTensorView(w.data(), problem.w, {problem.groups, problem.n, problem.k}),
                       TensorView(out.data(), problem.y, {problem.m, problem.groups, problem.n})};
    a.x.stride[0] = x_row;
    if (nvfp4()) {
      a.w = ConstTensorView(w.data(), problem.w, {problem.groups, problem.n, problem.k / 2});
      a.w_scale = ConstTensorView(w_scales.data(), DType::kE4M3, {problem.groups, w_scale_rows, w_scale_columns});
      a.w_global_scale = ConstTensorView(&w_global, DType::kF32, {1});
    }
    if (problem.x == DType::kE4M3) {
      a.x_scale = ConstTensorView(scales.data(), problem.x_scale == OutputScale::kF32 ? DType::kF32 : DType::kI32,
                                  {problem.groups, scale_rows, scale_columns});
    }
    if (problem.w == DType::kE4M3) {
      a.w_scale = ConstTensorView(w_scales.data(), DType::kF32, {problem.groups, w_scale_rows, w_scale_columns});
      a.w_scale.stride[0] = w_scale_rows * w_scale_stride;
      a.w_scale.stride[1] = w_scale_stride;
    }
    a.y.stride[0] = y_stride_m;
    a.y.stride[1] = y_stride_g;
    return a;
  }

  Projection::Problem problem;
  std::int64_t x_row, y_stride_m, y_stride_g;
  ProjectionBuffer x, w;
  std::int64_t scale_rows, scale_columns;
  ProjectionBuffer scales;
  std::int64_t w_scale_rows, w_scale_columns, w_scale_stride;
  ProjectionBuffer w_scales;
  float w_global;
  ProjectionBuffer y;
};

/// Everything of y written and nothing else.
inline void check_written(const ProjectionTensors& t, const ProjectionBuffer& y) {
  std::vector<bool> inside(static_cast<std::size_t>(y.elements()), false);
  for (std::int64_t i = 0; i < t.problem.m; ++i) {
    for (std::int64_t g = 0; g < t.problem.groups; ++g) {
      for (std::int64_t j = 0; j < t.problem.n; ++j) inside[static_cast<std::size_t>(t.y_at(i, g, j))] = true;
    }
  }
  for (std::int64_t i = 0; i < y.elements(); ++i)
    ASSERT_EQ(y.poisoned(i), !inside[static_cast<std::size_t>(i)]) << "element " << i;
}

inline float bf16_ulp(float value) {
  return std::ldexp(1.0F, (value == 0.0F ? -126 : std::max(std::ilogb(value), -126)) - 7);
}

/// fp32 results: l2 1e-5 of the whole. bf16 results: each within 1 ulp or 1e-5 of its row's largest. Native bf16
/// products rounded to bf16: l2 4e-3 as well. Tensor cores that add FP8 products in fewer bits than fp32 has
/// (`fp8_sums`): l2 1e-3, each bf16 within 2 ulp or 1e-3 of its row's largest.
inline void check_close(const ProjectionTensors& t, const ProjectionBuffer& y, const ProjectionBuffer& truth,
                        const std::string& implementation, bool fp8_sums = false) {
  double difference = 0.0;
  double size = 0.0;
  for (std::int64_t i = 0; i < t.problem.m; ++i) {
    for (std::int64_t g = 0; g < t.problem.groups; ++g) {
      float largest = 0.0F;
      for (std::int64_t j = 0; j < t.problem.n; ++j) largest = std::max(largest, std::fabs(truth.get(t.y_at(i, g, j))));
      for (std::int64_t j = 0; j < t.problem.n; ++j) {
        const float want = truth.get(t.y_at(i, g, j));
        const float got = y.get(t.y_at(i, g, j));
        const float off = std::fabs(got - want);
        difference += static_cast<double>(off) * static_cast<double>(off);
        size += static_cast<double>(want) * static_cast<double>(want);
        if (t.problem.y == DType::kBF16) {
          ASSERT_LE(off, fp8_sums ? std::max(2.0F * bf16_ulp(want), 1e-3F * largest)
                                  : std::max(bf16_ulp(want), 1e-5F * largest))
              << "row " << i << " group " << g << " output " << j << ": " << got << " for " << want;
        }
      }
    }
  }
  const double bound = t.problem.y == DType::kBF16 ? 4e-3 : fp8_sums ? 1e-3 : 1e-5;
  ASSERT_LE(std::sqrt(difference), bound * std::sqrt(size)) << implementation;
}

/// Shapes that meet every edge of the kernels' tiles, dtypes and strides taken in turn; large products with few groups
/// only.
inline std::vector<ProjectionCase> projection_cases() {
  const DType types[2] = {DType::kBF16, DType::kF32};
  std::vector<ProjectionCase> out;
  std::uint64_t count = 0;
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups, unsigned dtypes) {
    ProjectionCase c;
    c.problem = {.m = m,
                 .n = n,
                 .k = k,
                 .groups = groups,
                 .x = types[dtypes & 1U],
                 .w = types[(dtypes >> 1) & 1U],
                 .y = types[(dtypes >> 2) & 1U]};
    const std::uint64_t turn = count++;
    c.x_gap = turn % 3 == 0 ? 0 : static_cast<std::int64_t>(turn % 37);
    c.y_gap = turn % 4 == 0 ? 0 : static_cast<std::int64_t>(turn % 11);
    c.y_group_major = turn % 5 == 4;
    c.seed = turn + 1;
    out.push_back(c);
  };
  for (const std::int64_t groups : {1, 2, 8}) {
    for (const std::int64_t m : {0, 1, 2, 5, 6, 7, 16, 33, 64}) {
      for (const std::int64_t n : {1, 3, 4, 5, 64, 129, 512}) {
        for (const std::int64_t k : {1, 7, 16, 64, 100, 1024, 4096}) {
          if (groups * m * n * k > (groups == 1 ? 40'000'000 : 3'000'000)) continue;
          add(m, n, k, groups, static_cast<unsigned>(count * 5 + count / 8));
        }
      }
    }
  }
  for (unsigned dtypes = 0; dtypes < 8; ++dtypes) {
    add(25, 70, 2049, 2, dtypes);  // many rows, last block of k a single input
    add(200, 20, 130, 1, dtypes);  // two tiles of rows
    add(3, 0, 16, 2, dtypes);
    add(3, 5, 0, 2, dtypes);
    add(40, 33, 0, 1, dtypes);
  }
  const std::size_t plain = out.size();
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const std::int64_t m : {0, 1, 3, 5, 24, 25, 193, 400}) {
      for (const auto& [n, k, groups] :
           {std::array<std::int64_t, 3>{5, 128, 1}, {70, 640, 3}, {33, 2048, 2}, {3, 0, 2}, {0, 128, 1}}) {
        if (m * n * k * groups <= 12'000'000) add(m, n, k, groups, static_cast<unsigned>(count));
      }
    }
    for (std::size_t i = plain; i < out.size(); ++i) {
      if (out[i].problem.x == DType::kE4M3) continue;
      out[i].problem.x = DType::kE4M3;
      out[i].problem.x_scale = scale;
      out[i].scale_gap = static_cast<std::int64_t>(i % 4);
    }
  }
  add(64, 512, 4096, 1, 0);
  add(1100, 24, 40, 1, 0);  // several chunks of rows
  return out;
}

/// E4M3 weights: the layers' shapes, odd ones, every dtype of x, both forms of its scales, blocks that are not whole.
inline std::vector<ProjectionCase> fp8_weight_cases() {
  std::vector<ProjectionCase> out;
  std::uint64_t count = 1000;
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups, DType x, DType y) {
    ProjectionCase c;
    c.problem = {.m = m, .n = n, .k = k, .groups = groups, .x = x, .w = DType::kE4M3, .y = y};
    c.seed = ++count;
    out.push_back(c);
  };
  for (const std::int64_t m : {0, 1, 3, 4, 16, 17, 64, 67}) {
    for (const auto& [n, k, groups] : {std::array<std::int64_t, 3>{512, 4096, 1},
                                       {1024, 512, 1},
                                       {256, 512, 8},
                                       {144, 384, 2},
                                       {130, 640, 3},
                                       {5, 128, 1},
                                       {0, 128, 1},
                                       {3, 0, 2}}) {
      if (m * n * k * groups > 140'000'000) continue;
      for (const DType y : {DType::kBF16, DType::kF32}) {
        add(m, n, k, groups, DType::kE4M3, y);
        // Strides that no fast kernel takes as they are, and those that only have to be copied together.
        ProjectionCase gaps = out.back();
        gaps.x_gap = count % 2 == 0 ? 16 : 3;
        gaps.y_gap = count % 3 == 0 ? 8 : 0;
        gaps.y_group_major = count % 3 == 1;
        gaps.scale_gap = static_cast<std::int64_t>(count % 5);
        gaps.w_scale_gap = static_cast<std::int64_t>(count % 3);
        gaps.problem.x_scale = count % 7 == 0 ? OutputScale::kUe8m0x4 : OutputScale::kF32;
        out.push_back(gaps);
      }
    }
  }
  for (const DType x : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t m : {1, 2, 3, 5, 8, 33, 200}) {
      for (const auto& [n, k, groups] :
           {std::array<std::int64_t, 3>{129, 1, 2}, {257, 130, 1}, {64, 1040, 2}, {32, 1024, 1}}) {
        add(m, n, k, groups, x, m == 5 ? DType::kF32 : DType::kBF16);
        out.back().x_gap = m % 3;
        out.back().w_scale_gap = m / 5;
      }
    }
  }
  return out;
}

/// NVFP4 weights: the layers' shapes, odd ones, every dtype of x, inputs that are not whole registers or pieces.
inline std::vector<ProjectionCase> nvfp4_weight_cases() {
  std::vector<ProjectionCase> out;
  for (const std::int64_t m : {0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 25, 33, 64, 67, 200}) {
    for (const auto& [n, k, groups] : {std::array<std::int64_t, 3>{1, 16, 1},
                                       {5, 16, 3},
                                       {3, 48, 2},
                                       {129, 64, 1},
                                       {17, 80, 2},
                                       {33, 320, 2},
                                       {130, 192, 3},
                                       {70, 1040, 1},
                                       {64, 1024, 2},
                                       {40, 2112, 1},
                                       {256, 4096, 1},
                                       {0, 128, 1},
                                       {3, 0, 2}}) {
      if (m * n * k * groups > 20'000'000) continue;
      ProjectionCase c;
      const std::uint64_t turn = out.size();
      const DType x = turn % 5 == 3 ? DType::kF32 : turn % 5 == 4 && k % 128 == 0 ? DType::kE4M3 : DType::kBF16;
      c.problem = {.m = m, .n = n, .k = k, .groups = groups, .x = x, .w = Projection::kNvfp4};
      c.problem.y = turn % 2 == 0 ? DType::kBF16 : DType::kF32;
      c.problem.x_scale = turn % 3 == 0 ? OutputScale::kUe8m0x4 : OutputScale::kF32;
      c.x_gap = std::array<std::int64_t, 3>{0, 16, 3}[turn % 3];
      c.y_gap = static_cast<std::int64_t>(turn % 4);
      c.y_group_major = turn % 4 == 1;
      c.scale_gap = static_cast<std::int64_t>(turn % 5);
      c.seed = 2000 + turn;
      out.push_back(c);
    }
  }
  ProjectionCase panels;  // more outputs than oneDNN's panel of widened weights, whose last is a part
  panels.problem = {.m = 33, .n = 1060, .k = 4096, .groups = 2, .w = Projection::kNvfp4};
  panels.y_gap = 3;
  panels.seed = 3000;
  out.push_back(panels);
  return out;
}

/// Projections that quantise y: rows at the edges of tiles and of scales' padding, one and several groups. On a GPU
/// `sm90_stream` takes all but those of F32 y and E4M3 w.
inline std::vector<ProjectionCase> quantising_cases() {
  std::vector<ProjectionCase> out;
  const auto add = [&](const Projection::Problem& p) {
    ProjectionCase c;
    c.problem = p;
    c.problem.quantises_y = true;
    c.seed = 7000 + out.size();
    c.y_gap = static_cast<std::int64_t>(out.size() % 3) * 8;
    c.x_gap = static_cast<std::int64_t>(out.size() % 2) * 16;
    out.push_back(c);
  };
  for (const auto& [x, w] : {std::pair(DType::kE4M3, DType::kE4M3),
                             {DType::kBF16, DType::kE4M3},
                             {DType::kBF16, DType::kBF16},
                             {DType::kBF16, Projection::kNvfp4}}) {
    for (const std::int64_t m : {0, 1, 16, 30, 33, 63, 64, 130})
      add({.m = m, .n = 128, .k = 256, .groups = m % 2 + 1, .x = x, .w = w});
    add({.m = 19, .n = 384, .k = 1024, .groups = 3, .x = x, .w = w});
    add({.m = 70, .n = 640, .k = 128, .groups = 2, .x = x, .w = w});
    add({.m = 5, .n = 128, .k = 2048, .x = x, .w = w, .y = DType::kF32});
    add({.m = 5, .n = 256, .k = 0, .groups = 2, .x = x, .w = w});
    add({.m = 5, .n = 0, .k = 128, .x = x, .w = w});
  }
  add({.m = 20, .n = 256, .k = 64, .x = DType::kF32, .w = DType::kF32, .y = DType::kF32});
  return out;
}

/// Runs a quantising projection by `run(problem, args)`: y has the bits of the same without, and is quantised as
/// QuantizeRows does it. `quantise(problem, args)` is that op's reference. Some rows of values are not aligned to four
/// numbers.
template <class Run, class Quantise>
void check_quantised(const ProjectionCase& c, const Run& run, const Quantise& quantise) {
  const ProjectionTensors tensors(c);
  Projection::Problem plain = c.problem;
  plain.quantises_y = false;
  ProjectionBuffer want = tensors.poisoned_y();
  run(plain, tensors.args(want));
  const std::int64_t dim = plain.groups * plain.n;
  const auto gap = static_cast<std::int64_t>(c.seed % 3) * 2;
  QuantisedRows wanted(plain.m, dim, gap);
  ConstTensorView rows(want.data(), plain.y, {plain.m, dim});
  rows.stride[0] = tensors.y_stride_m;
  quantise(QuantizeRows::Problem{.rows = plain.m, .dim = dim, .in = plain.y}, wanted.args(rows));
  ProjectionBuffer got = tensors.poisoned_y();
  QuantisedRows quantised(plain.m, dim, gap);
  Projection::Args args = tensors.args(got);
  args.y_values = quantised.rows();
  args.y_scales = quantised.scales.view();
  run(c.problem, args);
  const auto same = [](const HostTensor& a, const HostTensor& b) {
    return a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0;
  };
  ASSERT_TRUE(got.same_bits(want));
  ASSERT_TRUE(same(quantised.values, wanted.values));
  ASSERT_TRUE(same(quantised.scales, wanted.scales));
}

}  // namespace smla::test
