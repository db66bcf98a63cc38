#include "bench/inputs.h"

#include <numeric>
#include <utility>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "engine/synthetic.h"

namespace smla::bench {

namespace {

float symmetric(std::uint64_t bits) { return static_cast<float>(2 * unit(bits) - 1); }

}  // namespace

HostTensor random_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width) {
  HostTensor out(dtype, std::move(shape));
  const std::int64_t n = out.numel();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t bits = mix(seed, static_cast<std::uint64_t>(i));
    const float value = width * symmetric(bits);
    if (dtype == DType::kU8) {
      static_cast<std::uint8_t*>(out.data())[i] = static_cast<std::uint8_t>(bits >> 56U);
    } else if (dtype == DType::kBF16) {
      static_cast<BF16*>(out.data())[i] = to_bf16(value);
    } else if (dtype == DType::kE4M3) {
      static_cast<E4M3*>(out.data())[i] = to_e4m3(value);
    } else {
      static_cast<float*>(out.data())[i] = value;
    }
  }
  return out;
}

HostTensor random_choices(std::int64_t rows, std::int64_t columns, std::int64_t limit, std::uint64_t seed) {
  HostTensor out(DType::kI32, {rows, columns});
  std::vector<std::int32_t> pool(static_cast<std::size_t>(limit));
  std::iota(pool.begin(), pool.end(), 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto left = static_cast<std::uint64_t>(limit - c);
      const auto pick = c + static_cast<std::int64_t>(mix(seed, static_cast<std::uint64_t>(r * columns + c)) % left);
      std::swap(pool[static_cast<std::size_t>(c)], pool[static_cast<std::size_t>(pick)]);
      out.as<std::int32_t>()[r * columns + c] = pool[static_cast<std::size_t>(c)];
    }
  }
  return out;
}

void fill_cache(const PagedCache& cache, std::uint64_t seed) {
  const int dim = cache.format->dim;
#pragma omp parallel
  {
    std::vector<float> row(static_cast<std::size_t>(dim));
#pragma omp for schedule(static)
    for (std::int64_t slot = 0; slot < cache.num_slots(); ++slot) {
      for (int d = 0; d < dim; ++d)
        row[static_cast<std::size_t>(d)] = symmetric(mix(seed, static_cast<std::uint64_t>(slot * dim + d)));
      encode_row(cache, slot, row.data());
    }
  }
}

OwnedCache random_cache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint64_t seed) {
  const std::int64_t page = page_bytes(format, block_size);
  OwnedCache out{.bytes = HostTensor(DType::kU8, {blocks * page}), .cache = {}};
  out.cache = {.format = &format,
               .base = out.bytes.as<std::uint8_t>(),
               .num_blocks = blocks,
               .block_size = block_size,
               .block_stride_bytes = page,
               .scale = 1.0F / 256};
  fill_cache(out.cache, seed);
  return out;
}

}  // namespace smla::bench
