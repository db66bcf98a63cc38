// Matrix products and the moves of their operands: mma, ldmatrix, stmatrix, wgmma.
#include <bit>
#include <cmath>

#include "machine.h"

namespace emulator {

namespace {

float widened(std::uint16_t bits, bool bf16) {
  return bf16 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16) : from_half(bits);
}
float at32(Warp& w, const Operand& o, int lane) { return std::bit_cast<float>(place<std::uint32_t>(w, o)[lane]); }
void set32(Warp& w, const Operand& o, int lane, float x) {
  place<std::uint32_t>(w, o)[lane] = std::bit_cast<std::uint32_t>(x);
}
std::uint16_t half_of(std::uint32_t word, int n) { return static_cast<std::uint16_t>(word >> 16 * n); }

/// The 16-byte rows of 8x8 tiles whose addresses lanes 8i..8i+7 hold.
std::byte* tile_row(Warp& w, const Operand& address, int tile, int row) {
  const int lane = 8 * tile + row;
  const std::uint64_t at = number(w, address, lane) + static_cast<std::uint64_t>(address.offset);
  if (at % 16 != 0) throw Error("ldmatrix or stmatrix: an address that is not a multiple of 16");
  return shared_address(w, at, 16);
}

/// A matrix in shared memory as wgmma finds it (device/ptx/wgmma_sm90.cuh of the library describes the word).
struct Matrix {
  std::byte* shared;
  std::size_t shared_bytes;
  std::uint32_t start;
  std::uint32_t leading;
  std::uint32_t stride;

  Matrix(Warp& w, std::uint64_t word)
      : shared(w.block->shared),
        shared_bytes(w.block->shared_bytes),
        start(static_cast<std::uint32_t>(word & 0x3FFF) << 4),
        leading(static_cast<std::uint32_t>(word >> 16 & 0x3FFF) << 4),
        stride(static_cast<std::uint32_t>(word >> 32 & 0x3FFF) << 4) {
    if (word >> 62 != 1) throw Error("wgmma: a matrix that is not swizzled by 128 bytes");
    if ((word >> 49 & 7) != 0) throw Error("wgmma: a base offset");
  }
  template <class Bits>
  Bits read(std::uint32_t linear) const {
    const std::uint32_t at = linear ^ ((linear >> 7 & 7) << 4);
    if (at + sizeof(Bits) > shared_bytes) throw Error("wgmma: a matrix past the end of shared memory");
    Bits bits = 0;
    std::memcpy(&bits, shared + at, sizeof bits);
    return bits;
  }
  /// Rows run along k.
  template <class Bits = std::uint16_t>
  Bits along_k(std::uint32_t row, std::uint32_t k) const {
    return read<Bits>(start + row / 8 * stride + row % 8 * 128 + static_cast<std::uint32_t>(sizeof(Bits)) * k);
  }
  /// Rows run along the other dimension.
  std::uint16_t across_k(std::uint32_t column, std::uint32_t k) const {
    return read<std::uint16_t>(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 + 2 * (column % 64));
  }
};

constexpr int kDepth = 16;  ///< k of one product of 16-bit numbers
constexpr int kMostColumns = 256;

/// Where a lies in registers: the word of four that has number k of a row of sixteen, and the lane and half of it.
float in_registers(const Product& p, std::uint32_t row, std::uint32_t k, bool bf16) {
  const std::uint32_t word = row / 8 + k / 8 * 2;
  const std::uint32_t lane = row % 8 * 4 + k % 8 / 2;
  return widened(half_of(p.left[word * kLanes + lane], static_cast<int>(k % 2)), bf16);
}

/// A warp's 16 rows of a product of 64.
void multiply(Warp& w, const Product& p) {
  const Instruction& i = *p.instruction;
  const bool bf16 = i.from == Type::kBF16;
  const int columns = static_cast<int>(i.d.size()) * 2;
  const Matrix b(w, p.b);
  const std::size_t flags = p.registers ? 6 : 3;  // scale-a, scale-b, trans-a of a matrix in memory, trans-b
  const bool negative_a = static_cast<std::int32_t>(number(w, i.s[flags], 0)) < 0;
  const bool negative_b = static_cast<std::int32_t>(number(w, i.s[flags + 1], 0)) < 0;
  const bool a_across = !p.registers && number(w, i.s[flags + 2], 0) != 0;
  const bool b_across = number(w, i.s.back(), 0) != 0;
  const float sign = negative_a != negative_b ? -1.0F : 1.0F;
  const auto in_memory = [&](const Matrix& a, std::uint32_t row, std::uint32_t k) {
    return widened(a_across ? a.across_k(row, k) : a.along_k(row, k), bf16);
  };
  static thread_local float right[kDepth][kMostColumns];
  for (int n = 0; n < columns; ++n) {
    for (int k = 0; k < kDepth; ++k) {
      const auto column = static_cast<std::uint32_t>(n);
      const auto depth = static_cast<std::uint32_t>(k);
      right[k][n] = widened(b_across ? b.across_k(column, depth) : b.along_k(column, depth), bf16);
    }
  }
  for (int r = 0; r < 16; ++r) {
    const auto row = static_cast<std::uint32_t>(w.number % 4 * 16 + r);
    float sums[kMostColumns];
    for (int n = 0; n < columns; ++n) {
      const std::size_t register_of = static_cast<std::size_t>(n / 8 * 4 + n % 2 + (r >= 8 ? 2 : 0));
      sums[n] = p.add ? at32(w, i.d[register_of], r % 8 * 4 + n % 8 / 2) : 0.0F;
    }
    for (int k = 0; k < kDepth; ++k) {
      const auto depth = static_cast<std::uint32_t>(k);
      const float left = sign * (p.registers ? in_registers(p, static_cast<std::uint32_t>(r), depth, bf16)
                                             : in_memory(Matrix(w, p.a), row, depth));
      for (int n = 0; n < columns; ++n) sums[n] += left * right[k][n];
    }
    for (int n = 0; n < columns; ++n) {
      const std::size_t register_of = static_cast<std::size_t>(n / 8 * 4 + n % 2 + (r >= 8 ? 2 : 0));
      set32(w, i.d[register_of], r % 8 * 4 + n % 8 / 2, sums[n]);
    }
  }
}

constexpr int kCodeDepth = 32;     ///< k of one product of e4m3 numbers
constexpr int kCodeFraction = 13;  ///< bits behind the leading one that such a product keeps of a number

/// before + the products, as narrow as Hopper is known to add them: all are cut off below 2^-13 of the power of two of
/// the largest, and so is the sum.
float narrow_sum(const float (&products)[kCodeDepth], float before) {
  const auto exponent = [](float x) { return static_cast<int>(std::bit_cast<std::uint32_t>(x) >> 23 & 0xFF); };
  int largest = exponent(before);
  for (const float x : products) largest = std::max(largest, exponent(x));
  if (largest == 0xFF) {
    float sum = before;
    for (const float x : products) sum += x;
    return sum;
  }
  const int unit = largest - 127 - kCodeFraction;
  const double in_units = std::ldexp(1.0, -unit);
  auto sum = static_cast<std::int64_t>(before * in_units);
  for (const float x : products) sum += static_cast<std::int64_t>(x * in_units);
  const auto whole = static_cast<float>(std::ldexp(static_cast<double>(sum), unit));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(whole) & ~((1U << (23 - kCodeFraction)) - 1));
}

float of_code(std::uint32_t code) {
  static const auto all = [] {
    std::array<float, 256> numbers{};
    for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = from_e4m3(static_cast<std::uint8_t>(n));
    return numbers;
  }();
  return all[code & 0xFF];
}

/// A warp's 16 rows of a product of 64 with e4m3 numbers.
void multiply_codes(Warp& w, const Product& p) {
  const Instruction& i = *p.instruction;
  const int columns = static_cast<int>(i.d.size()) * 2;
  const Matrix b(w, p.b);
  const std::size_t signs = p.registers ? 6 : 3;
  for (const Operand& sign : {i.s[signs], i.s[signs + 1]})
    if (number(w, sign, 0) != 1) throw Error("wgmma: a sign that the emulator does not know");
  float left[16][kCodeDepth];
  if (p.registers) {
    for (int l = 0; l < kLanes; ++l) {
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t word = p.left[static_cast<std::size_t>(n * kLanes + l)];
        for (int byte = 0; byte < 4; ++byte)
          left[l / 4 + n % 2 * 8][n / 2 * 16 + l % 4 * 4 + byte] = of_code(word >> 8 * byte);
      }
    }
  } else {
    const Matrix a(w, p.a);
    for (int r = 0; r < 16; ++r) {
      for (int k = 0; k < kCodeDepth; ++k)
        left[r][k] = of_code(
            a.along_k<std::uint8_t>(static_cast<std::uint32_t>(w.number % 4 * 16 + r), static_cast<std::uint32_t>(k)));
    }
  }
  for (int n = 0; n < columns; ++n) {
    float right[kCodeDepth];
    for (int k = 0; k < kCodeDepth; ++k)
      right[k] = of_code(b.along_k<std::uint8_t>(static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(k)));
    for (int r = 0; r < 16; ++r) {
      const std::size_t register_of = static_cast<std::size_t>(n / 8 * 4 + n % 2 + (r >= 8 ? 2 : 0));
      const int lane = r % 8 * 4 + n % 8 / 2;
      float products[kCodeDepth];
      for (int k = 0; k < kCodeDepth; ++k) products[k] = left[r][k] * right[k];
      set32(w, i.d[register_of], lane, narrow_sum(products, p.add ? at32(w, i.d[register_of], lane) : 0.0F));
    }
  }
}

void finish(Warp& w, std::uint32_t up_to) {
  while (!w.products.empty() && w.products.front().group < up_to) {
    const Product& p = w.products.front();
    p.instruction->from == Type::kE4M3 ? multiply_codes(w, p) : multiply(w, p);
    w.products.pop_front();
  }
}

}  // namespace

namespace {

/// d = a b + c of mma.sync: 16 x kDepthOf by kDepthOf x 8.
template <int kDepthOf>
void multiply_small(Warp& w, const Instruction& i, const float (&a)[16][kDepthOf], const float (&b)[kDepthOf][8]) {
  float sums[16][8];
  for (int l = 0; l < kLanes; ++l)
    for (int n = 0; n < 4; ++n)
      sums[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2] = at32(w, i.s[static_cast<std::size_t>(6 + n)], l);
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < kDepthOf; ++k) {
      for (int c = 0; c < 8; ++c) sums[r][c] += a[r][k] * b[k][c];
    }
  }
  for (int l = 0; l < kLanes; ++l)
    for (int n = 0; n < 4; ++n)
      set32(w, i.d[static_cast<std::size_t>(n)], l, sums[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2]);
}

}  // namespace

void run_mma(Warp& w, const Instruction& i, std::uint32_t) {
  const bool bf16 = i.from == Type::kBF16;
  float a[16][16];
  float b[16][8];
  for (int l = 0; l < kLanes; ++l) {
    const int g = l / 4;
    const int t = l % 4 * 2;
    for (int n = 0; n < 4; ++n) {
      const std::uint32_t word = place<std::uint32_t>(w, i.s[static_cast<std::size_t>(n)])[l];
      for (int h = 0; h < 2; ++h) a[g + n % 2 * 8][t + h + n / 2 * 8] = widened(half_of(word, h), bf16);
    }
    for (int n = 0; n < 2; ++n) {
      const std::uint32_t word = place<std::uint32_t>(w, i.s[static_cast<std::size_t>(4 + n)])[l];
      for (int h = 0; h < 2; ++h) b[t + h + n * 8][g] = widened(half_of(word, h), bf16);
    }
  }
  multiply_small(w, i, a, b);
}

/// Of tf32 numbers, of which only the upper 19 bits are read.
void run_mma_tf32(Warp& w, const Instruction& i, std::uint32_t) {
  constexpr std::uint32_t kRead = ~std::uint32_t{0x1FFF};
  float a[16][8];
  float b[8][8];
  for (int l = 0; l < kLanes; ++l) {
    const auto number_of = [&](int n) {
      return std::bit_cast<float>(place<std::uint32_t>(w, i.s[static_cast<std::size_t>(n)])[l] & kRead);
    };
    for (int n = 0; n < 4; ++n) a[l / 4 + n % 2 * 8][l % 4 + n / 2 * 4] = number_of(n);
    for (int n = 0; n < 2; ++n) b[l % 4 + n * 4][l / 4] = number_of(4 + n);
  }
  multiply_small(w, i, a, b);
}

void run_ldmatrix(Warp& w, const Instruction& i, std::uint32_t) {
  std::uint32_t words[4][kLanes];
  for (int tile = 0; tile < static_cast<int>(i.d.size()); ++tile) {
    std::uint16_t numbers[8][8];
    for (int row = 0; row < 8; ++row) std::memcpy(numbers[row], tile_row(w, i.s[0], tile, row), 16);
    for (int l = 0; l < kLanes; ++l) {
      const int r = l / 4;
      const int c = l % 4 * 2;
      words[tile][l] = i.mode == 1 ? static_cast<std::uint32_t>(numbers[c + 1][r]) << 16 | numbers[c][r]
                                   : static_cast<std::uint32_t>(numbers[r][c + 1]) << 16 | numbers[r][c];
    }
  }
  for (std::size_t tile = 0; tile < i.d.size(); ++tile)
    for (int l = 0; l < kLanes; ++l) place<std::uint32_t>(w, i.d[tile])[l] = words[tile][l];
}

void run_stmatrix(Warp& w, const Instruction& i, std::uint32_t) {
  for (int tile = 0; tile + 1 < static_cast<int>(i.s.size()); ++tile) {
    std::uint16_t numbers[8][8];
    for (int l = 0; l < kLanes; ++l) {
      const std::uint32_t word = place<std::uint32_t>(w, i.s[static_cast<std::size_t>(tile + 1)])[l];
      for (int h = 0; h < 2; ++h)
        (i.mode == 1 ? numbers[l % 4 * 2 + h][l / 4] : numbers[l / 4][l % 4 * 2 + h]) = half_of(word, h);
    }
    for (int row = 0; row < 8; ++row) std::memcpy(tile_row(w, i.s[0], tile, row), numbers[row], 16);
  }
  ++w.block->cluster->progress;
}

// A product begins when it is asked for and is made when it is waited for, or at once: both are what hardware may do.
void run_wgmma(Warp& w, const Instruction& i, std::uint32_t) {
  const bool codes = i.from == Type::kE4M3;
  // a, b, whether to add, two signs, and of 16-bit numbers an order of each matrix in memory. In registers a takes
  // four.
  const bool registers = i.s.size() == (codes ? 8 : 9);
  if (!registers && i.s.size() != (codes ? 5 : 7)) throw Error("wgmma: operands that the emulator does not know");
  const std::size_t b = registers ? 4 : 1;
  Product p{.instruction = &i,
            .a = registers ? 0 : number(w, i.s[0], 0),
            .b = number(w, i.s[b], 0),
            .add = (predicate(w, i.s[b + 1]) & 1) != 0,
            .registers = registers,
            .group = w.committed_products};
  for (std::size_t n = 0; registers && n < 4; ++n)
    for (std::size_t l = 0; l < kLanes; ++l) p.left[n * kLanes + l] = place<std::uint32_t>(w, i.s[n])[l];
  w.products.push_back(p);
  if ((w.block->cluster->random() >> 8 & 1) != 0) finish(w, w.committed_products + 1);
}
void run_wgmma_commit(Warp& w, const Instruction&, std::uint32_t) { ++w.committed_products; }
void run_wgmma_wait(Warp& w, const Instruction& i, std::uint32_t) {
  const auto running = static_cast<std::uint32_t>(number(w, i.s[0], 0));
  finish(w, w.committed_products > running ? w.committed_products - running : 0);
}

}  // namespace emulator
