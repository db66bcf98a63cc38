#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/codecs.h"

namespace smla {

/// How the numbers of a linear weight are stored.
enum class LinearEncoding : std::uint8_t {
  kPlain,  ///< BF16 or F32
  kFp8,    ///< e4m3, one UE8M0 or fp32 scale for each 128x128 block
  kNvfp4  ///< e2m1 (two a byte, the lower column in the low half), one e4m3 scale for each 16 columns, one fp32 for all
};

/// Rows or columns of a block that share an FP8 scale; columns that share an NVFP4 scale.
inline constexpr std::int64_t kFp8Block = 128;
inline constexpr std::int64_t kNvfp4Group = 16;

/// A tensor in a file.
struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  std::string name;
  const SafetensorsEntry* entry = nullptr;

  std::string where() const { return file->path() + ": tensor " + name; }
};

/// A linear weight [outputs, inputs] with its scales.
struct LinearSource {
  LinearEncoding encoding = LinearEncoding::kPlain;
  StoredTensor weight;
  StoredTensor scale;         ///< kFp8, kNvfp4
  StoredTensor global_scale;  ///< kNvfp4
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Rows x columns of a weight whose shapes were checked: BF16, or F32 where the file has F32. Reads a block of rows at
/// a time.
/// @throws IoError naming tensor, row and column of a number or scale that is not finite.
HostTensor read_linear(const LinearSource& source, Range rows, Range columns);

/// A quantised weight as it is stored.
struct KeptLinear {
  HostTensor codes;         ///< kFp8: [rows, columns] E4M3; kNvfp4: [rows, columns/2] U8
  HostTensor scales;        ///< kFp8: of its blocks, F32; kNvfp4: [rows, columns/16] E4M3
  HostTensor global_scale;  ///< kNvfp4: [1] F32
};
/// Whether rows x columns of a weight are whole blocks of it.
bool is_whole_blocks(const LinearSource& source, Range rows, Range columns);
/// Rows x columns, whole blocks, of a kFp8 weight. @throws IoError as read_linear, for the same numbers.
KeptLinear read_fp8(const LinearSource& source, Range rows, Range columns);
/// Rows x columns, whole groups of columns, of a kNvfp4 weight. @throws IoError as read_linear, for the same numbers.
KeptLinear read_nvfp4(const LinearSource& source, Range rows, Range columns);

/// A tensor of any rank as it is, or widened to F32. `infinity`: whether it may hold infinities. @throws IoError as
/// above.
HostTensor read_plain(const StoredTensor& source, bool as_f32, bool infinity);

/// A positive finite fp32 scalar (F32 or BF16, [] or [1]). @throws IoError for another value.
float read_scalar(const StoredTensor& source);

/// Nearest bf16, ties to even, in one rounding.
constexpr BF16 bf16_of(double x) {
  auto f = static_cast<float>(x);
  if (static_cast<double>(f) != x) {
    // Round to odd first: the last bit says that something was cut off, so that the second rounding sees the whole
    // number.
    auto bits = std::bit_cast<std::uint32_t>(f);
    const bool away = x < 0 ? static_cast<double>(f) < x : static_cast<double>(f) > x;
    if ((bits & 0x7F80'0000U) != 0x7F80'0000U) f = std::bit_cast<float>((away ? bits - 1 : bits) | 1U);
  }
  return to_bf16(f);
}

/// A linear weight as a checkpoint stores it. `scale` and `global_scale` are absent where the encoding has none; kFp8
/// scales are UE8M0 bytes.
struct EncodedLinear {
  HostTensor weight;
  HostTensor scale;
  HostTensor global_scale;
};
/// @param weight [outputs, inputs] BF16; inputs a multiple of 16 for kNvfp4. @throws InvalidArgument.
EncodedLinear encode_linear(const ConstTensorView& weight, LinearEncoding encoding);

/// The tensors `stem`.weight, .scale, ... that a linear weight [outputs, inputs] of this encoding becomes in a file, in
/// the order of EncodedLinear's members.
std::vector<SafetensorsPlan> plan_linear(const std::string& stem, std::int64_t outputs, std::int64_t inputs,
                                         LinearEncoding encoding);

}  // namespace smla
