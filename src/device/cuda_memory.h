#pragma once

#include <cstddef>
#include <cstdint>

#include "sparsemla/device.h"

namespace smla {

// What memory.h, streams.h and graphs need of CUDA: memory_cuda.cu, or no_cuda.cpp, where everything throws
// Unsupported.
void* cuda_allocate(std::size_t bytes);
void cuda_free(void* p);
void cuda_copy(void* to, const void* from, std::size_t bytes, Stream stream);
void cuda_fill(void* to, int byte, std::size_t bytes, Stream stream);
void cuda_synchronize(Stream stream);

void cuda_set_device(int ordinal);

void* cuda_make_stream();
void cuda_free_stream(void* stream);
void* cuda_make_event();
void cuda_free_event(void* event);
void cuda_record(void* event, Stream stream);
void cuda_wait(void* event, Stream stream);

void cuda_begin_capture(Stream stream);
void* cuda_end_capture(Stream stream, std::int64_t* bytes);  ///< an executable graph and the free memory it took
void cuda_abandon_capture(Stream stream);
void cuda_launch_graph(void* graph, Stream stream);
void cuda_free_graph(void* graph);

}  // namespace smla
