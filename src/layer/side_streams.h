#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/streams.h"

namespace smla {

/// The stream on which a layer's compressors and indexer run while the caller's stream makes latents and queries, or,
/// beside joint products, the queries of attention are made while the caller's stream runs the indexer; a third one for
/// compressors beside both; and the events by which they meet.
struct SideStream {
  explicit SideStream(DeviceKind on) : device(on), stream(on), begun(on), queries_ready(on), done(on), compressed(on) {}
  /// The stream of compressors beside joint products, made when it is first asked for.
  Stream compressors() {
    if (!compressors_) compressors_.emplace(device);
    return compressors_->get();
  }
  std::mutex lock;  ///< held while a forward queues its work: what an event means is decided when it is recorded
  DeviceKind device;
  OwnedStream stream;
  Event begun;          ///< hidden states are there, or what joint products make of them
  Event queries_ready;  ///< the latent queries are normed
  Event done;           ///< what runs on the side stream has ended
  Event compressed;     ///< what runs on the compressors' stream has ended

 private:
  std::optional<OwnedStream> compressors_;
};

/// One side stream for each stream that a layer is called on. A side stream joins the capture of the stream that it
/// serves and stays in it until the capture ends; callers on other streams never see it.
class SideStreams {
 public:
  explicit SideStreams(DeviceKind device) : device_(device) {}
  /// The side stream of the caller's stream, made at the first call for it; it stays as long as the layer.
  SideStream& of(Stream caller) {
    const std::lock_guard guard(lock_);
    std::unique_ptr<SideStream>& side = by_caller_[caller.handle];
    if (side == nullptr) side = std::make_unique<SideStream>(device_);
    return *side;
  }

 private:
  DeviceKind device_;
  std::mutex lock_;
  std::map<void*, std::unique_ptr<SideStream>> by_caller_;
};

}  // namespace smla
