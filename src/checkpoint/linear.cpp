#include "checkpoint/linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "device/large_pages.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

bool finite(BF16 x) { return (x.bits & 0x7F80U) != 0x7F80U; }

std::string place(std::int64_t row, std::int64_t column) { return std::to_string(row) + ", " + std::to_string(column); }

[[noreturn]] void bad_value(const StoredTensor& source, float value, const std::string& at,
                            const std::string& expected) {
  // The sign of a NaN says nothing.
  const std::string text = std::isnan(value) ? "nan" : std::to_string(value);
  throw IoError(source.where() + ": got " + text + " at [" + at + "], expected " + expected);
}

/// Block scales as doubles. @throws IoError unless each is finite and not negative.
std::vector<double> read_scales(const StoredTensor& source, const HostTensor& stored, std::int64_t first_row) {
  std::vector<double> scales(static_cast<std::size_t>(stored.numel()));
  for (std::int64_t i = 0; i < stored.numel(); ++i) {
    float value = 0;
    switch (stored.dtype()) {
      case DType::kF32: value = stored.as<float>()[i]; break;
      case DType::kE4M3: value = to_float(stored.as<E4M3>()[i]); break;
      default: value = from_ue8m0(stored.as<std::uint8_t>()[i]); break;
    }
    // A group's e4m3 scale may round to 0; a block's fp32 scale of 0 would silently drop 128 x 128 weights.
    const bool may_be_zero = stored.dtype() == DType::kE4M3;
    if (!std::isfinite(value) || value < 0 || (value == 0 && !may_be_zero)) {
      bad_value(source, value, place(first_row + i / stored.size(1), i % stored.size(1)),
                may_be_zero ? "a finite scale that is not negative" : "a finite scale above 0");
    }
    scales[static_cast<std::size_t>(i)] = static_cast<double>(value);
  }
  return scales;
}

// Pieces are decoded by threads only when they are large: below, waking the threads takes longer than the work.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 23;
constexpr std::int64_t kThreadedElements = std::int64_t{1} << 20;

/// A piece of a weight on its way to bf16: rows from `first_row` on. Each returns the flat index (in the piece) of the
/// first number that is not finite, or kNone.
std::int64_t decode_fp8(const HostTensor& codes, std::int64_t first_row, const double* scales, Range columns,
                        BF16* out) {
  std::int64_t bad = kNone;
  const std::int64_t inputs = codes.size(1);
  const std::int64_t scale_columns = (inputs + kFp8Block - 1) / kFp8Block;
  const std::int64_t first_column_block = columns.begin / kFp8Block;
  const std::int64_t column_blocks = (columns.end + kFp8Block - 1) / kFp8Block - first_column_block;
  const std::int64_t first_row_block = first_row / kFp8Block;
  const std::int64_t row_blocks = (first_row + codes.size(0) + kFp8Block - 1) / kFp8Block - first_row_block;
#pragma omp parallel for schedule(static) reduction(min : bad) if (codes.numel() >= kThreadedElements)
  for (std::int64_t block = 0; block < row_blocks * column_blocks; ++block) {
    const std::int64_t row_block = first_row_block + block / column_blocks;
    const std::int64_t column_block = first_column_block + block % column_blocks;
    std::array<BF16, 256> value{};
    for (unsigned code = 0; code < 256; ++code) {
      value[code] = bf16_of(static_cast<double>(to_float(E4M3{static_cast<std::uint8_t>(code)})) *
                            scales[row_block * scale_columns + column_block]);
    }
    const Range rows{std::max<std::int64_t>(0, row_block * kFp8Block - first_row),
                     std::min(codes.size(0), (row_block + 1) * kFp8Block - first_row)};
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t c = std::max(columns.begin, column_block * kFp8Block);
           c < std::min(columns.end, (column_block + 1) * kFp8Block); ++c) {
        const BF16 v = value[codes.as<E4M3>()[r * inputs + c].bits];
        const std::int64_t at = r * columns.size() + c - columns.begin;
        if (!finite(v)) bad = std::min(bad, at);
        out[at] = v;
      }
    }
  }
  return bad;
}

std::int64_t decode_nvfp4(const HostTensor& codes, const double* scales, double global, Range columns, BF16* out) {
  std::int64_t bad = kNone;
  const std::int64_t inputs = 2 * codes.size(1);
  const std::int64_t groups = inputs / kNvfp4Group;
#pragma omp parallel for schedule(static) reduction(min : bad) if (codes.numel() >= kThreadedElements)
  for (std::int64_t r = 0; r < codes.size(0); ++r) {
    for (std::int64_t g = columns.begin / kNvfp4Group; g < (columns.end + kNvfp4Group - 1) / kNvfp4Group; ++g) {
      std::array<BF16, 16> value{};
      // 4 + 24 + 2 significant bits: the product is exact in double.
      for (unsigned code = 0; code < 16; ++code) {
        value[code] = bf16_of(static_cast<double>(from_e2m1(static_cast<std::uint8_t>(code))) *
                              (scales[r * groups + g] * global));
      }
      for (std::int64_t c = std::max(columns.begin, g * kNvfp4Group); c < std::min(columns.end, (g + 1) * kNvfp4Group);
           ++c) {
        const unsigned byte = codes.as<std::uint8_t>()[r * codes.size(1) + c / 2];
        const BF16 v = value[c % 2 == 0 ? byte & 15U : byte >> 4U];
        const std::int64_t at = r * columns.size() + c - columns.begin;
        if (!finite(v)) bad = std::min(bad, at);
        out[at] = v;
      }
    }
  }
  return bad;
}

template <class T>
std::int64_t copy_plain(const HostTensor& from, Range columns, T* out) {
  std::int64_t bad = kNone;
  const std::int64_t inputs = from.size(1);
  const T* source = from.as<T>();
#pragma omp parallel for schedule(static) reduction(min : bad) if (from.numel() >= kThreadedElements)
  for (std::int64_t r = 0; r < from.size(0); ++r) {
    for (std::int64_t c = columns.begin; c < columns.end; ++c) {
      const T v = source[r * inputs + c];
      const std::int64_t at = r * columns.size() + c - columns.begin;
      bool good = false;
      if constexpr (std::is_same_v<T, BF16>) {
        good = finite(v);
      } else {
        good = std::isfinite(v);
      }
      if (!good) bad = std::min(bad, at);
      out[at] = v;
    }
  }
  return bad;
}

}  // namespace

HostTensor read_linear(const LinearSource& s, Range rows, Range columns) {
  const bool f32 = s.encoding == LinearEncoding::kPlain && s.weight.entry->dtype == "F32";
  HostTensor out(f32 ? DType::kF32 : DType::kBF16, {rows.size(), columns.size()});
  std::vector<double> block_scales;
  if (s.encoding == LinearEncoding::kFp8) block_scales = read_scales(s.scale, s.scale.file->read(s.scale.name), 0);
  const double global = s.encoding == LinearEncoding::kNvfp4 ? static_cast<double>(read_scalar(s.global_scale)) : 1.0;

  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, s.inputs));
  for (std::int64_t begin = rows.begin; begin < rows.end;) {
    const std::int64_t end = std::min(rows.end, begin + piece_rows);
    const HostTensor piece = s.weight.file->read_rows(s.weight.name, begin, end);
    const std::int64_t offset = (begin - rows.begin) * columns.size();
    std::int64_t bad = kNone;
    if (f32) {
      bad = copy_plain(piece, columns, out.as<float>() + offset);
    } else if (s.encoding == LinearEncoding::kPlain) {
      bad = copy_plain(piece, columns, out.as<BF16>() + offset);
    } else if (s.encoding == LinearEncoding::kFp8) {
      bad = decode_fp8(piece, begin, block_scales.data(), columns, out.as<BF16>() + offset);
    } else {
      const std::vector<double> scales = read_scales(s.scale, s.scale.file->read_rows(s.scale.name, begin, end), begin);
      bad = decode_nvfp4(piece, scales.data(), global, columns, out.as<BF16>() + offset);
    }
    if (bad != kNone) {
      const float value = f32 ? out.as<float>()[offset + bad] : to_float(out.as<BF16>()[offset + bad]);
      bad_value(s.weight, value, place(begin + bad / columns.size(), columns.begin + bad % columns.size()),
                "a weight that is finite as bf16");
    }
    begin = end;
  }
  prefer_large_pages(out.data(), out.bytes());
  return out;
}

bool is_whole_blocks(const LinearSource& s, Range rows, Range columns) {
  const auto whole = [](Range part, std::int64_t all) {
    return part.begin % kFp8Block == 0 && (part.end % kFp8Block == 0 || part.end == all);
  };
  return whole(rows, s.outputs) && whole(columns, s.inputs);
}

KeptLinear read_fp8(const LinearSource& s, Range rows, Range columns) {
  const auto blocks = [](Range part) { return Range{part.begin / kFp8Block, (part.end + kFp8Block - 1) / kFp8Block}; };
  const Range block_rows = blocks(rows);
  const Range block_columns = blocks(columns);
  const std::int64_t stride = (s.inputs + kFp8Block - 1) / kFp8Block;
  KeptLinear out{.codes = HostTensor(DType::kE4M3, {rows.size(), columns.size()}),
                 .scales = HostTensor(DType::kF32, {block_rows.size(), block_columns.size()}),
                 .global_scale = {}};
  const std::vector<double> scales = read_scales(s.scale, s.scale.file->read(s.scale.name), 0);
  for (std::int64_t r = 0; r < block_rows.size(); ++r) {
    for (std::int64_t c = 0; c < block_columns.size(); ++c) {
      const double scale = scales[static_cast<std::size_t>((block_rows.begin + r) * stride + block_columns.begin + c)];
      out.scales.as<float>()[r * block_columns.size() + c] = static_cast<float>(scale);
    }
  }
  // Decoded once and thrown away: a weight that cannot be dequantised is no better kept.
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, s.inputs));
  for (std::int64_t begin = rows.begin; begin < rows.end;) {
    const std::int64_t end = std::min(rows.end, begin + piece_rows);
    const HostTensor piece = s.weight.file->read_rows(s.weight.name, begin, end);
    std::vector<BF16> decoded(static_cast<std::size_t>((end - begin) * columns.size()));
    if (const std::int64_t bad = decode_fp8(piece, begin, scales.data(), columns, decoded.data()); bad != kNone) {
      bad_value(s.weight, to_float(decoded[static_cast<std::size_t>(bad)]),
                place(begin + bad / columns.size(), columns.begin + bad % columns.size()),
                "a weight that is finite as bf16");
    }
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(out.codes.as<E4M3>() + (r - rows.begin) * columns.size(),
                  piece.as<E4M3>() + (r - begin) * s.inputs + columns.begin, static_cast<std::size_t>(columns.size()));
    }
    begin = end;
  }
  prefer_large_pages(out.codes.data(), out.codes.bytes());
  return out;
}

KeptLinear read_nvfp4(const LinearSource& s, Range rows, Range columns) {
  const Range groups{columns.begin / kNvfp4Group, columns.end / kNvfp4Group};
  KeptLinear out{.codes = HostTensor(DType::kU8, {rows.size(), columns.size() / 2}),
                 .scales = HostTensor(DType::kE4M3, {rows.size(), groups.size()}),
                 .global_scale = HostTensor(DType::kF32, {1})};
  const float global = out.global_scale.as<float>()[0] = read_scalar(s.global_scale);
  const auto copy_columns = [](const HostTensor& from, std::int64_t first, HostTensor& to, std::int64_t to_row) {
    for (std::int64_t r = 0; r < from.size(0); ++r) {  // elements are bytes
      std::memcpy(static_cast<std::uint8_t*>(to.data()) + (to_row + r) * to.size(1),
                  static_cast<const std::uint8_t*>(from.data()) + r * from.size(1) + first,
                  static_cast<std::size_t>(to.size(1)));
    }
  };
  // Decoded once and thrown away, as FP8 weights are.
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, s.inputs));
  for (std::int64_t begin = rows.begin; begin < rows.end;) {
    const std::int64_t end = std::min(rows.end, begin + piece_rows);
    const HostTensor codes = s.weight.file->read_rows(s.weight.name, begin, end);
    const HostTensor stored_scales = s.scale.file->read_rows(s.scale.name, begin, end);
    const std::vector<double> scales = read_scales(s.scale, stored_scales, begin);
    std::vector<BF16> decoded(static_cast<std::size_t>((end - begin) * columns.size()));
    const std::int64_t bad = decode_nvfp4(codes, scales.data(), static_cast<double>(global), columns, decoded.data());
    if (bad != kNone) {
      bad_value(s.weight, to_float(decoded[static_cast<std::size_t>(bad)]),
                place(begin + bad / columns.size(), columns.begin + bad % columns.size()),
                "a weight that is finite as bf16");
    }
    copy_columns(codes, columns.begin / 2, out.codes, begin - rows.begin);
    copy_columns(stored_scales, groups.begin, out.scales, begin - rows.begin);
    begin = end;
  }
  prefer_large_pages(out.codes.data(), out.codes.bytes());
  return out;
}

HostTensor read_plain(const StoredTensor& source, bool as_f32, bool infinity) {
  HostTensor stored = source.file->read(source.name);
  HostTensor wide(DType::kF32, stored.shape());
  for (std::int64_t i = 0; i < stored.numel(); ++i) {
    const float v = stored.dtype() == DType::kF32 ? stored.as<float>()[i] : to_float(stored.as<BF16>()[i]);
    if (infinity ? std::isnan(v) : !std::isfinite(v))
      bad_value(source, v, std::to_string(i), infinity ? "no NaN" : "a finite number");
    wide.as<float>()[i] = v;
  }
  return as_f32 ? std::move(wide) : std::move(stored);
}

float read_scalar(const StoredTensor& source) {
  const HostTensor value = read_plain(source, true, false);
  if (value.numel() != 1 || !(value.as<float>()[0] > 0))
    bad_value(source, value.numel() == 1 ? value.as<float>()[0] : 0, "0", "one positive scale");
  return value.as<float>()[0];
}

namespace {

EncodedLinear encode_fp8(const BF16* w, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t block_rows = (outputs + kFp8Block - 1) / kFp8Block;
  const std::int64_t block_columns = (inputs + kFp8Block - 1) / kFp8Block;
  EncodedLinear out{.weight = HostTensor(DType::kE4M3, {outputs, inputs}),
                    .scale = HostTensor(DType::kU8, {block_rows, block_columns}),
                    .global_scale = {}};
  for (std::int64_t b = 0; b < block_rows * block_columns; ++b) {
    const Range rows{b / block_columns * kFp8Block, std::min(outputs, (b / block_columns + 1) * kFp8Block)};
    const Range columns{b % block_columns * kFp8Block, std::min(inputs, (b % block_columns + 1) * kFp8Block)};
    float amax = 0;
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = columns.begin; c < columns.end; ++c)
        amax = std::max(amax, std::abs(to_float(w[r * inputs + c])));
    const int exponent =
        amax > 0 ? std::clamp(ceil_log2(std::max(amax / 448.0F, std::numeric_limits<float>::min())), -126, 127) : 0;
    out.scale.as<std::uint8_t>()[b] = static_cast<std::uint8_t>(exponent + 127);
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = columns.begin; c < columns.end; ++c)
        out.weight.as<E4M3>()[r * inputs + c] = to_e4m3(std::ldexp(to_float(w[r * inputs + c]), -exponent));
  }
  return out;
}

EncodedLinear encode_nvfp4(const BF16* w, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t groups = inputs / kNvfp4Group;
  EncodedLinear out{.weight = HostTensor(DType::kU8, {outputs, inputs / 2}),
                    .scale = HostTensor(DType::kE4M3, {outputs, groups}),
                    .global_scale = HostTensor(DType::kF32, {})};
  float largest = 0;
  for (std::int64_t i = 0; i < outputs * inputs; ++i) largest = std::max(largest, std::abs(to_float(w[i])));
  const float global = largest > 0 ? std::max(largest / (6.0F * 448.0F), std::numeric_limits<float>::min()) : 1.0F;
  out.global_scale.as<float>()[0] = global;
  for (std::int64_t g = 0; g < outputs * groups; ++g) {
    const BF16* x = w + g * kNvfp4Group;
    float amax = 0;
    for (std::int64_t i = 0; i < kNvfp4Group; ++i) amax = std::max(amax, std::abs(to_float(x[i])));
    const E4M3 scale = to_e4m3(amax / 6.0F / global);
    out.scale.as<E4M3>()[g] = scale;
    const float step = to_float(scale) * global;
    for (std::int64_t i = 0; i < kNvfp4Group; ++i) {
      const unsigned code = step > 0 ? to_e2m1(to_float(x[i]) / step) : 0;
      out.weight.as<std::uint8_t>()[(g * kNvfp4Group + i) / 2] |=
          static_cast<std::uint8_t>(code << (i % 2 == 0 ? 0 : 4));
    }
  }
  return out;
}

}  // namespace

EncodedLinear encode_linear(const ConstTensorView& weight, LinearEncoding encoding) {
  check_tensor("encode_linear", "weight", weight, {kAny, kAny}, {DType::kBF16});
  check_that(weight.contiguous(), "encode_linear", "weight", std::string("strided rows"), "contiguous ones");
  const auto* w = weight.as<BF16>();
  if (encoding == LinearEncoding::kFp8) return encode_fp8(w, weight.size(0), weight.size(1));
  if (encoding == LinearEncoding::kNvfp4) {
    check_that(weight.size(1) % kNvfp4Group == 0, "encode_linear", "columns", weight.size(1),
               "a multiple of 16 for NVFP4");
    return encode_nvfp4(w, weight.size(0), weight.size(1));
  }
  HostTensor copy(DType::kBF16, {weight.size(0), weight.size(1)});
  std::memcpy(copy.data(), w, copy.bytes());
  return {.weight = std::move(copy), .scale = {}, .global_scale = {}};
}

std::vector<SafetensorsPlan> plan_linear(const std::string& stem, std::int64_t outputs, std::int64_t inputs,
                                         LinearEncoding encoding) {
  const auto blocks = [](std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
  switch (encoding) {
    case LinearEncoding::kFp8:
      return {{.name = stem + ".weight", .dtype = "F8_E4M3", .shape = {outputs, inputs}},
              {.name = stem + ".scale", .dtype = "F8_E8M0", .shape = {blocks(outputs), blocks(inputs)}}};
    case LinearEncoding::kNvfp4:
      return {{.name = stem + ".weight", .dtype = "U8", .shape = {outputs, inputs / 2}},
              {.name = stem + ".weight_scale", .dtype = "F8_E4M3", .shape = {outputs, inputs / kNvfp4Group}},
              {.name = stem + ".weight_scale_2", .dtype = "F32", .shape = {}}};
    case LinearEncoding::kPlain: break;
  }
  return {{.name = stem + ".weight", .dtype = "BF16", .shape = {outputs, inputs}}};
}

}  // namespace smla
