#pragma once

// Tensors of a call in another memory: what replays a host's case on a GPU, and shows a GPU's call to observers on the
// host.

#include <algorithm>
#include <functional>
#include <map>

#include "device/memory.h"
#include "ops/call_observer.h"
#include "ops/op_descriptions.h"

namespace smla {

/// Copies of the memory that an op's arguments view. Views of one address share a copy; bytes between strided rows are
/// copied too.
class StagedTensors {
 public:
  /// @param target whose memory the copies lie in; the other side is the host or the GPU, whichever `target` is not.
  explicit StagedTensors(DeviceKind target, Stream stream = {}) : target_(target), stream_(stream) {}

  /// The arguments over copies, which hold what the originals hold.
  template <class Op>
  typename Op::Args bring(typename Op::Args args) {
    OpDescription<Op>::tensors(args, Visit{*this, Pass::kMeasure});
    for (auto& [original, piece] : pieces_) piece.copy = DeviceMemory(target_, piece.bytes, false);
    again();
    OpDescription<Op>::tensors(args, Visit{*this, Pass::kRedirect});
    return args;
  }
  /// Originals to copies once more.
  void again() {
    for (auto& [original, piece] : pieces_)
      copy_bytes(DeviceKind::kCuda, piece.copy.data(), original, piece.bytes, stream_);
    synchronize(DeviceKind::kCuda, stream_);
  }
  /// Copies to originals, all bytes, so that a stray write shows.
  void back() {
    for (auto& [original, piece] : pieces_)
      copy_bytes(DeviceKind::kCuda, const_cast<void*>(original), piece.copy.data(), piece.bytes, stream_);
    synchronize(DeviceKind::kCuda, stream_);
  }

 private:
  enum class Pass { kMeasure, kRedirect };
  struct Piece {
    DeviceMemory copy;
    std::size_t bytes = 0;
  };
  struct Visit {
    StagedTensors& self;
    Pass pass;
    void in(const char*, ConstTensorView& v) { view(v); }
    void out(const char*, TensorView& v) { view(v); }
    void cache(const char*, PagedCache& c, CacheAccess) {
      if (c.format == nullptr || c.base == nullptr || c.num_blocks == 0) return;
      const auto bytes =
          static_cast<std::size_t>((c.num_blocks - 1) * c.block_stride_bytes + block_bytes(*c.format, c.block_size));
      if (pass == Pass::kMeasure) {
        self.note(c.base, bytes);
      } else {
        c.base = static_cast<std::uint8_t*>(self.pieces_.at(c.base).copy.data());
      }
    }
    template <class View>
    void view(View& v) {
      if (v.absent() || v.data == nullptr || v.numel() == 0) return;
      std::int64_t last = 0;
      for (int i = 0; i < v.rank; ++i) last += (v.size(i) - 1) * v.stride[static_cast<std::size_t>(i)];
      if (pass == Pass::kMeasure) {
        self.note(v.data, static_cast<std::size_t>((last + 1) * size_of(v.dtype)));
      } else {
        v.data = self.pieces_.at(v.data).copy.data();
      }
    }
  };
  void note(const void* original, std::size_t bytes) {
    Piece& piece = pieces_[original];
    piece.bytes = std::max(piece.bytes, bytes);
  }

  DeviceKind target_;
  Stream stream_;
  std::map<const void*, Piece> pieces_;
};

/// Runs a plan over host memory wherever it runs, in a workspace of 0xFF, and waits for it.
template <class Op>
void run_staged(const Plan<Op>& plan, const typename Op::Args& args, DeviceKind device) {
  const DeviceMemory workspace(device, plan.workspace_bytes(), false);
  fill_bytes(device, workspace.data(), 0xFF, workspace.bytes());
  const Workspace lent{.data = workspace.data(), .bytes = workspace.bytes()};
  if (device == DeviceKind::kCpu) return plan.run(args, lent);
  StagedTensors staged(device);
  plan.run(staged.bring<Op>(args), lent);
  synchronize(device);
  staged.back();
}

/// Shows a call to `look`, which must call its second argument once, over host memory: the call's own, or copies that
/// follow the GPU's.
template <class Op>
void show_call(const typename Op::Args& args, const CallPlace& place, const std::function<void()>& run, auto&& look) {
  if (place.device == DeviceKind::kCpu) return look(args, run);
  StagedTensors staged(DeviceKind::kCpu, place.stream);
  const typename Op::Args copies = staged.bring<Op>(args);
  look(copies, [&] {
    run();
    staged.again();
  });
}

}  // namespace smla
