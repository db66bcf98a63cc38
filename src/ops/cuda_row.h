#pragma once

#include "ops/decision.h"

namespace smla {

/// The row of an op's table that `<op>_cuda.cu` defines, and no_cuda.cpp for every op where the build has no CUDA.
template <class Op>
Implementation<Op> cuda_row();

/// The same of `<op>_sm90.cu`, whose kernels are for Hopper alone, and of no_sm90.cpp.
template <class Op>
Implementation<Op> sm90_row();

/// What a `_cuda.cu` file returns from cuda_row(): without `decide` it takes every problem on any GPU from sm_80 on.
template <class Op>
Implementation<Op> any_gpu_row(decltype(Implementation<Op>::run) run,
                               decltype(Implementation<Op>::decide) decide = take_all<Op, needs_gpu>) {
  return {
      .name = "cuda", .machine = "NVIDIA GPU, sm_80 and up", .device = DeviceKind::kCuda, .decide = decide, .run = run};
}

/// What a `_sm90.cu` file returns from sm90_row(). Its code runs on GPUs of compute capability 9.0 only.
template <class Op>
Implementation<Op> hopper_row(decltype(Implementation<Op>::run) run, decltype(Implementation<Op>::decide) decide) {
  return {.name = "sm90", .machine = "NVIDIA Hopper, sm_90", .device = DeviceKind::kCuda, .decide = decide, .run = run};
}

}  // namespace smla
