#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sparsemla/kv_format.h"

namespace smla {

/// Whether rows of one format can be written as rows of the other without changing a number: the same format, or
/// index_fp8 and index_fp8_ue8m0, which differ in how they store a power of two.
bool converts(const RowFormat& from, const RowFormat& to);

/// Turns rows [first, end) of a block of `block_size` rows from one such format into the other, in place. Rows of
/// zeros, which nobody wrote, stay zeros. @return empty, or what was wrong with the first row that `to` cannot hold
/// ("row 3: got ..., expected ..."); the block is half done then.
std::string convert_rows(const RowFormat& from, const RowFormat& to, std::int64_t block_size, std::int64_t first,
                         std::int64_t end, std::span<std::uint8_t> block);

}  // namespace smla
