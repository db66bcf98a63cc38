#pragma once

#include "bench/device_timer.h"
#include "bench/machine.h"

namespace smla::bench {

/// The ceilings of the first GPU, medians: a bf16 product of 8192^3 by whatever Plan<Projection> chooses, a copy,
/// gathers of fp8_ds_mla rows, mma.sync from registers, and what the timer itself measures of nothing. @throws
/// Unsupported without a GPU.
Machine measure_gpu(const MeasureOptions& options);

/// Its name, the driver's version and CUDA's, no ceilings.
Machine gpu_identity();

/// "580.65.06" out of /proc/driver/nvidia/version; empty when the text has no version.
std::string driver_version(std::string_view text);

}  // namespace smla::bench
