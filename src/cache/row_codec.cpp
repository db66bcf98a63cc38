#include "cache/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/codecs.h"

namespace smla {

namespace {

float load(Element element, const std::uint8_t* bytes, int i) {
  switch (element) {
    case Element::kF32: {
      float v = 0;
      std::memcpy(&v, bytes + 4 * static_cast<std::ptrdiff_t>(i), 4);
      return v;
    }
    case Element::kBF16: {
      BF16 v;
      std::memcpy(&v, bytes + 2 * static_cast<std::ptrdiff_t>(i), 2);
      return to_float(v);
    }
    case Element::kE4M3: return to_float(E4M3{bytes[i]});
    case Element::kE2M1: return from_e2m1(static_cast<std::uint8_t>((bytes[i / 2] >> (4 * (i % 2))) & 15U));
  }
  return 0;
}

void store(Element element, std::uint8_t* bytes, int i, float value) {
  switch (element) {
    case Element::kF32: std::memcpy(bytes + 4 * static_cast<std::ptrdiff_t>(i), &value, 4); break;
    case Element::kBF16: {
      const BF16 v = to_bf16(value);
      std::memcpy(bytes + 2 * static_cast<std::ptrdiff_t>(i), &v, 2);
      break;
    }
    case Element::kE4M3: bytes[i] = to_e4m3(value).bits; break;
    case Element::kE2M1: {
      const std::uint8_t code = to_e2m1(value);
      bytes[i / 2] =
          static_cast<std::uint8_t>(i % 2 == 0 ? (bytes[i / 2] & 0xF0U) | code : (bytes[i / 2] & 0x0FU) | (code << 4));
      break;
    }
  }
}

float group_scale(const RowFormat& format, const std::uint8_t* scales, int group) {
  if (format.scale == ScaleKind::kUe8m0) return from_ue8m0(scales[group]);
  float s = 0;
  std::memcpy(&s, scales + 4 * static_cast<std::ptrdiff_t>(group), 4);
  return s;
}

}  // namespace

void decode_row(const PagedCache& cache, std::int64_t slot, float* values) {
  const RowFormat& f = *cache.format;
  const std::uint8_t* data = row_data(cache, slot / cache.block_size, slot % cache.block_size);
  const std::uint8_t* scales = scales_of_row(cache, slot / cache.block_size, slot % cache.block_size);
  for (int i = 0; i < f.nope_dim; ++i) {
    float v = load(f.nope, data, i);
    if (f.group > 0) v *= group_scale(f, scales, i / f.group);
    if (f.scale == ScaleKind::kPerTensor) v *= cache.scale;
    values[i] = v;
  }
  const std::uint8_t* rope = data + rope_offset(f);
  for (int i = 0; i < f.rope_dim(); ++i) values[f.nope_dim + i] = load(f.rope, rope, i);
}

void encode_row(const PagedCache& cache, std::int64_t slot, const float* values, ClampRule clamp) {
  const RowFormat& f = *cache.format;
  std::uint8_t* data = row_data(cache, slot / cache.block_size, slot % cache.block_size);
  std::uint8_t* scales = scales_of_row(cache, slot / cache.block_size, slot % cache.block_size);
  std::memset(scales, 0, static_cast<std::size_t>(f.scale_bytes + f.inline_scale_bytes));

  for (int g = 0; g < f.groups(); ++g) {
    const float* x = values + static_cast<std::ptrdiff_t>(g) * f.group;
    float amax = 0;
    for (int i = 0; i < f.group; ++i) amax = std::max(amax, std::fabs(to_float(to_bf16(x[i]))));
    const bool fp4 = f.nope == Element::kE2M1;
    const int e = fp4 ? e2m1_group_exponent(amax) : e4m3_group_exponent(amax, clamp == ClampRule::kScale);
    const float inverse = exp2_int(-e);
    for (int i = 0; i < f.group; ++i) store(f.nope, data, g * f.group + i, to_float(to_bf16(x[i])) * inverse);
    if (f.scale == ScaleKind::kUe8m0) {
      // A lone scale is written as often as it has room.
      std::fill_n(scales + g, f.groups() == 1 ? f.scale_bytes : 1,
                  static_cast<std::uint8_t>(std::clamp(e + 127, 0, 255)));
    } else {
      const float s = exp2_int(e);
      std::memcpy(scales + 4 * static_cast<std::ptrdiff_t>(g), &s, 4);
    }
  }
  if (f.group == 0) {
    const float factor = f.scale == ScaleKind::kPerTensor ? 1.0F / cache.scale : 1.0F;
    for (int i = 0; i < f.nope_dim; ++i)
      store(f.nope, data, i, f.scale == ScaleKind::kPerTensor ? values[i] * factor : values[i]);
  }
  std::uint8_t* rope = data + rope_offset(f);
  for (int i = 0; i < f.rope_dim(); ++i) store(f.rope, rope, i, values[f.nope_dim + i]);
}

void hadamard(float* values, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int i = 0; i < n; i += 2 * half) {
      for (int j = i; j < i + half; ++j) {
        const float a = values[j];
        const float b = values[j + half];
        values[j] = a + b;
        values[j + half] = a - b;
      }
    }
  }
  const float factor = 1.0F / std::sqrt(static_cast<float>(n));
  for (int i = 0; i < n; ++i) values[i] *= factor;
}

}  // namespace smla
