#pragma once

#include <list>

#include "device/memory.h"
#include "ops/op_descriptions.h"
#include "sparsemla/op.h"

namespace smla::test {

/// A copy on the GPU.
struct ShiftedPiece {
  DeviceMemory memory;
  void* host = nullptr;  ///< null: nothing comes back
  void* device = nullptr;
  std::size_t bytes = 0;
};

/// Copies what it visits and lets the views point there.
struct ShiftedVisit {
  std::list<ShiftedPiece>& pieces;
  std::int64_t elements;

  void* take(const void* host, std::size_t bytes, std::size_t shift, bool back) {
    ShiftedPiece& p = pieces.emplace_back(ShiftedPiece{.memory = DeviceMemory(DeviceKind::kCuda, bytes + shift)});
    p.device = static_cast<std::uint8_t*>(p.memory.data()) + shift;
    p.bytes = bytes;
    if (back) p.host = const_cast<void*>(host);
    copy_bytes(DeviceKind::kCuda, p.device, host, bytes);
    return p.device;
  }
  template <class View>
  void view(View& v, bool back) {
    if (v.absent() || v.numel() == 0) return;
    std::int64_t last = 0;
    for (int i = 0; i < v.rank; ++i) last += (v.size(i) - 1) * v.stride[static_cast<std::size_t>(i)];
    v.data = take(v.data, static_cast<std::size_t>((last + 1) * size_of(v.dtype)),
                  static_cast<std::size_t>(elements * size_of(v.dtype)), back);
  }
  void in(const char*, ConstTensorView& v) { view(v, false); }
  void out(const char*, TensorView& v) { view(v, true); }
  void cache(const char*, PagedCache& c, CacheAccess) {
    if (c.format == nullptr || c.num_blocks == 0) return;
    const auto bytes =
        static_cast<std::size_t>((c.num_blocks - 1) * c.block_stride_bytes + block_bytes(*c.format, c.block_size));
    c.base = static_cast<std::uint8_t*>(take(c.base, bytes, static_cast<std::size_t>(elements), true));
  }
};

/// Runs the GPU's implementation over copies of host memory that begin `elements` elements (a cache: bytes) past an
/// aligned address, and copies the outputs and caches back. Every view has a copy of its own: not for calls in place.
template <class Op>
void run_shifted(const typename Op::Problem& problem, typename Op::Args args, std::int64_t elements) {
  std::list<ShiftedPiece> pieces;
  const Plan<Op> plan(problem, {.device = DeviceKind::kCuda});
  OpDescription<Op>::tensors(args, ShiftedVisit{pieces, elements});
  const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes());
  plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
  synchronize(DeviceKind::kCuda);
  for (const ShiftedPiece& p : pieces) {
    if (p.host != nullptr) copy_bytes(DeviceKind::kCuda, p.host, p.device, p.bytes);
  }
}

}  // namespace smla::test
