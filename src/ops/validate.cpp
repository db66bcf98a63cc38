#include "sparsemla/ops/validate.h"

#include "ops/call_observer.h"
#include "ops/op_list.h"
#include "ops/staging.h"

namespace smla {

namespace {

template <class Op>
void validate_then_run(const typename Op::Problem& problem, const typename Op::Args& args, const CallPlace& place,
                       const std::function<void()>& run) {
  if (place.device == DeviceKind::kCpu) {
    validate<Op>(problem, args);
  } else {
    StagedTensors copies(DeviceKind::kCpu, place.stream);
    validate<Op>(problem, copies.bring<Op>(args));
  }
  run();
}

}  // namespace

void validate_calls(bool on) {
  for_each_op([on]<class Op>() { call_observer<Op>.store(on ? validate_then_run<Op> : nullptr); });
}

}  // namespace smla
