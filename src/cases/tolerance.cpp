#include "cases/tolerance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cases/compare_rows.h"
#include "core/codecs.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

/// Sign-magnitude bits to a line of integers on which neighbours are one apart.
std::int64_t on_line(std::uint32_t bits, int width) {
  const std::uint32_t sign = 1U << (width - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1U));
  return (bits & sign) != 0U ? -magnitude : magnitude;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kE4M3;
}

double element(const HostTensor& t, std::int64_t i) {
  switch (t.dtype()) {
    case DType::kF32: return t.as<float>()[i];
    case DType::kF64: return t.as<double>()[i];
    case DType::kBF16: return to_float(t.as<BF16>()[i]);
    case DType::kE4M3: return to_float(t.as<E4M3>()[i]);
    case DType::kU8: return t.as<std::uint8_t>()[i];
    case DType::kI32: return t.as<std::int32_t>()[i];
    case DType::kI64: return static_cast<double>(t.as<std::int64_t>()[i]);
    case DType::kBool: return t.as<bool>()[i] ? 1.0 : 0.0;
  }
  return 0.0;
}

std::int64_t ulps(const HostTensor& a, const HostTensor& b, std::int64_t i) {
  if (a.dtype() == DType::kF32) return ulp_distance(a.as<float>()[i], b.as<float>()[i]);
  if (a.dtype() == DType::kBF16) return ulp_distance(a.as<BF16>()[i], b.as<BF16>()[i]);
  return ulp_distance(a.as<E4M3>()[i], b.as<E4M3>()[i]);
}

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.7g", value);
  return buffer;
}

std::vector<std::int64_t> unravel(const HostTensor& t, std::int64_t i) {
  std::vector<std::int64_t> index(t.shape().size());
  for (std::size_t d = index.size(); d-- > 0;) {
    index[d] = i % t.shape()[d];
    i /= t.shape()[d];
  }
  return index;
}

/// Sums over the elements that count, and what breaks whatever the bound.
struct Sums {
  double error2 = 0.0;
  double want2 = 0.0;
  double got2 = 0.0;
  double dot = 0.0;
  bool want_zero = true;
  bool got_zero = true;
};

void fail(Comparison& result, const std::string& why) {
  result.pass = false;
  if (result.failure.empty()) result.failure = why;
}

/// The value rules: in-place infinities and NaN, all-zero, abs + rel, ulp, l2, cos; fills worst, where and l2 on the
/// way.
Comparison compare_values(const HostTensor& got, const HostTensor& want, const Tolerance& tolerance) {
  Comparison result;
  Sums sums;
  double worst = -1.0;
  std::int64_t worst_at = 0;
  const auto consider = [&](double error, std::int64_t i) {
    if (error > worst || (std::isnan(error) && !std::isnan(worst))) {
      worst = error;
      worst_at = i;
    }
  };
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const double w = element(want, i);
    const double g = element(got, i);
    sums.want_zero = sums.want_zero && w == 0.0;
    sums.got_zero = sums.got_zero && g == 0.0;
    if (!std::isfinite(w) || !std::isfinite(g)) {
      const bool same = (std::isnan(w) && std::isnan(g)) || w == g;
      if (!same) fail(result, "an infinity or NaN is not in place");
      consider(same ? 0.0 : INFINITY, i);
      continue;
    }
    const double error = std::fabs(g - w);
    consider(error, i);
    sums.error2 += error * error;
    sums.want2 += w * w;
    sums.got2 += g * g;
    sums.dot += g * w;
    if ((tolerance.abs || tolerance.rel) &&
        !(error <= tolerance.abs.value_or(0.0) + tolerance.rel.value_or(0.0) * std::fabs(w))) {
      fail(result, "an element is past abs + rel * |want|");
    }
    if (tolerance.ulp && ulps(got, want, i) > *tolerance.ulp)
      fail(result, "an element is more than " + std::to_string(*tolerance.ulp) + " ulp off");
  }
  result.worst = std::max(worst, 0.0);
  if (want.numel() > 0) {
    result.where = unravel(want, worst_at);
    result.detail = "got " + number(element(got, worst_at)) + ", want " + number(element(want, worst_at));
  }
  result.l2 = sums.error2 == 0.0 ? 0.0 : std::sqrt(sums.error2) / std::sqrt(sums.want2);
  if (sums.want_zero && !sums.got_zero) fail(result, "all zeros expected");
  if (tolerance.l2 && !(std::sqrt(sums.error2) <= *tolerance.l2 * std::sqrt(sums.want2)))
    fail(result, "l2 is over " + number(*tolerance.l2));
  if (tolerance.cos && sums.want2 > 0.0) {
    const double norms = std::sqrt(sums.want2) * std::sqrt(sums.got2);
    const double distance = norms > 0.0 ? 1.0 - sums.dot / norms : 1.0;
    if (!(distance <= *tolerance.cos))
      fail(result, "1 - cosine is " + number(distance) + ", over " + number(*tolerance.cos));
  }
  return result;
}

/// One row as sorted numbers without -1.
std::vector<std::int64_t> sorted_row(const HostTensor& t, std::int64_t row, std::int64_t width) {
  std::vector<std::int64_t> out;
  for (std::int64_t c = 0; c < width; ++c) {
    const std::int64_t v =
        t.dtype() == DType::kI32 ? t.as<std::int32_t>()[row * width + c] : t.as<std::int64_t>()[row * width + c];
    if (v != -1) out.push_back(v);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Comparison compare_sets(const HostTensor& got, const HostTensor& want) {
  Comparison result;
  const std::int64_t width = want.rank() == 0 ? 1 : want.size(want.rank() - 1);
  const std::int64_t rows = width == 0 ? 0 : want.numel() / width;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<std::int64_t> g = sorted_row(got, row, width);
    const std::vector<std::int64_t> w = sorted_row(want, row, width);
    const auto twice = std::adjacent_find(g.begin(), g.end());
    std::vector<std::int64_t> difference;
    std::set_symmetric_difference(g.begin(), g.end(), w.begin(), w.end(), std::back_inserter(difference));
    if (difference.empty() && twice == g.end()) continue;
    fail(result, twice != g.end() ? "a row holds an entry twice" : "a row is another set");
    const auto size = static_cast<double>(std::max<std::size_t>(difference.size(), 1));
    if (size <= result.worst) continue;
    result.worst = size;
    result.where = {row};
    const std::int64_t entry = twice != g.end() ? *twice : difference.front();
    const bool have = std::binary_search(g.begin(), g.end(), entry);
    result.detail = (twice != g.end() ? "entry twice: "
                     : have           ? "entry not wanted: "
                                      : "entry missing: ") +
                    std::to_string(entry);
  }
  return result;
}

Comparison compare_bytes(const HostTensor& got, const HostTensor& want) {
  Comparison result;
  if (got.bytes() != 0 && std::memcmp(got.data(), want.data(), want.bytes()) == 0) return result;
  const auto size = static_cast<std::size_t>(size_of(want.dtype()));
  const auto* g = static_cast<const unsigned char*>(got.data());
  const auto* w = static_cast<const unsigned char*>(want.data());
  std::int64_t count = 0;
  std::int64_t first = -1;
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    if (std::memcmp(g + static_cast<std::size_t>(i) * size, w + static_cast<std::size_t>(i) * size, size) == 0)
      continue;
    if (first < 0) first = i;
    ++count;
  }
  if (count == 0) return result;
  const Comparison values = compare_values(got, want, {});
  result.worst = values.worst;
  result.l2 = values.l2;
  result.where = unravel(want, first);
  result.detail = "got " + number(element(got, first)) + ", want " + number(element(want, first));
  fail(result, std::to_string(count) + " of " + std::to_string(want.numel()) + " elements differ, exact expected");
  return result;
}

void check_meaning(const HostTensor& want, const Tolerance& tolerance) {
  const std::string dtype(name_of(want.dtype()));
  if (tolerance.ulp && (!is_float(want.dtype()) || want.dtype() == DType::kF64)) {
    throw InvalidArgument("tolerance ulp: got a result of dtype " + dtype + ", expected BF16, F8_E4M3 or F32");
  }
  if (tolerance.set && want.dtype() != DType::kI32 && want.dtype() != DType::kI64) {
    throw InvalidArgument("tolerance set: got a result of dtype " + dtype + ", expected I32 or I64");
  }
  const bool raw = want.dtype() == DType::kU8 && want.rank() == 2;
  const bool typed = is_float(want.dtype()) && want.rank() == 3;
  if (tolerance.rows && !raw && !typed) {
    throw InvalidArgument("tolerance rows: got a result " + describe(want.view()) +
                          ", expected U8 [blocks, block stride] or numbers [blocks, block size, dim]");
  }
}

}  // namespace

std::int64_t ulp_distance(float a, float b) {
  return std::abs(on_line(std::bit_cast<std::uint32_t>(a), 32) - on_line(std::bit_cast<std::uint32_t>(b), 32));
}
std::int64_t ulp_distance(BF16 a, BF16 b) { return std::abs(on_line(a.bits, 16) - on_line(b.bits, 16)); }
std::int64_t ulp_distance(E4M3 a, E4M3 b) { return std::abs(on_line(a.bits, 8) - on_line(b.bits, 8)); }

Tolerance parse_tolerance(const std::string& where, const JsonValue& value) {
  const JsonReader json(where, value);
  Tolerance out;
  for (const auto& [key, bound] : value.members) {
    const auto positive = [&, name = key] { return json.number(name, 0.0, 1e300); };
    // Zeros in place of a result have an l2 of 1, and a distance of 1 by their cosine.
    const auto below_one = [&, name = key] {
      const double v = positive();
      if (v >= 1) json.fail(name, number(v), "a bound below 1, for zeros pass at 1");
      return v;
    };
    if (key == "abs") {
      out.abs = positive();
    } else if (key == "rel") {
      out.rel = positive();
    } else if (key == "l2") {
      out.l2 = below_one();
    } else if (key == "cos") {
      out.cos = below_one();
    } else if (key == "ulp") {
      out.ulp = json.integer(key, 0, INT32_MAX);
    } else if (key == "set") {
      out.set = json.flag(key);
    } else if (key == "rows") {
      const JsonReader rows(where + ": rows", bound);
      out.rows = RowsTolerance{.format = &row_format(rows.text("format")),
                               .block_size = rows.integer("block_size", 1, std::int64_t{1} << 31),
                               .steps = rows.integer("steps", 0, 255, 0),
                               .ulp = rows.integer("ulp", 0, 65535, 0)};
    } else {
      json.fail(key, "an unknown bound", "abs, rel, l2, cos, ulp, set or rows");
    }
  }
  return out;
}

std::string describe(const Tolerance& t) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (t.abs || t.rel) add("abs " + number(t.abs.value_or(0)) + " + rel " + number(t.rel.value_or(0)));
  if (t.abs_of_largest) add("abs " + number(*t.abs_of_largest) + " of the largest");
  if (t.l2) add("l2 " + number(*t.l2));
  if (t.cos) add("cos " + number(*t.cos));
  if (t.ulp) add("ulp " + std::to_string(*t.ulp));
  if (t.set) add("set");
  if (t.rows)
    add("rows of " + std::string(t.rows->format->name) + ", steps " + std::to_string(t.rows->steps) + ", ulp " +
        std::to_string(t.rows->ulp));
  return text.empty() ? "exact" : text;
}

Comparison compare(const HostTensor& got, const HostTensor& want, const Tolerance& tolerance) {
  const bool by_value = !tolerance.exact() && !tolerance.ulp && !tolerance.rows && !tolerance.set &&
                        is_float(got.dtype()) && is_float(want.dtype());
  if (got.shape() != want.shape() || (got.dtype() != want.dtype() && !by_value)) {
    Comparison mismatch;
    const auto text = [](const HostTensor& t) {
      std::string shape;
      for (const std::int64_t n : t.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(n);
      return "[" + shape + "] " + std::string(name_of(t.dtype()));
    };
    fail(mismatch, "got " + text(got) + ", want " + text(want));
    return mismatch;
  }
  check_meaning(want, tolerance);
  if (tolerance.exact()) return compare_bytes(got, want);
  Tolerance values = tolerance;
  if (values.abs_of_largest) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < want.numel(); ++i) {
      if (const double w = std::fabs(element(want, i)); std::isfinite(w)) largest = std::max(largest, w);
    }
    values.abs = values.abs.value_or(0.0) + *values.abs_of_largest * largest;
    values.abs_of_largest.reset();
  }
  values.set = false;
  values.rows.reset();
  std::vector<Comparison> parts;
  if (tolerance.set) parts.push_back(compare_sets(got, want));
  if (tolerance.rows) parts.push_back(compare_rows(got, want, *tolerance.rows));
  if (!values.exact()) parts.push_back(compare_values(got, want, values));
  for (const Comparison& part : parts) {
    if (!part.pass) return part;
  }
  return parts.front();
}

}  // namespace smla
