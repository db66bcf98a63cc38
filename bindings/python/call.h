#pragma once

// Calls of ops by name: Python's keywords to the scalars and tensors of the C interface.

#include <nanobind/nanobind.h>

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op_table.h"
#include "python/tensors.h"
#include "sparsemla/c_api.h"
#include "sparsemla/device.h"

namespace smla::python {

/// A paged cache over a tensor of Python, which stays its owner.
struct Cache {
  nb::object tensor;
  std::string format;
  std::int64_t block_size = 0;
  std::int64_t block_stride_bytes = 0;  ///< 0: taken from the tensor
  float kv_scale = 1.0F;
};

/// A cache as a call sees it.
struct CacheView {
  Tensor tensor;
  smla_cache cache{};
};

/// Looks at a cache's tensor anew: base, blocks and stride. @throws InvalidArgument when the blocks do not fit in it.
CacheView read_cache(std::string_view name, const Cache& cache, void* stream);

/// Scalars and tensors of one call, by member. `add` takes nested values apart.
class Call {
 public:
  explicit Call(const OpRow& op) : op_(op) {}

  /// @throws InvalidArgument for a name that is no member, a name given twice and a value of another kind.
  void add(const std::string& name, nb::handle value);
  /// Imports the tensors. `stream`: see read_tensor.
  void read_tensors(void* stream);
  /// The place of all tensors; the CPU without any. @throws InvalidArgument for tensors in two places.
  Place place() const;
  /// Fills in what tensors determine.
  void determine();

  std::vector<smla_scalar> scalars() const;
  std::vector<smla_argument> arguments() const;
  /// What tells calls apart that are planned apart: scalars, and shapes and dtypes of tensors.
  std::string signature() const;
  /// Whether a tensor has bytes, which may stand for other types.
  bool has_bytes() const;
  /// Dtypes of the tensors, in their order.
  std::vector<DType> dtypes() const;
  void set_dtypes(const std::vector<DType>& dtypes);
  const OpRow& op() const { return op_; }
  const std::vector<NamedScalar>& named_scalars() const { return scalars_; }
  bool has_tensors() const { return !values_.empty(); }
  /// The first tensor that is not of numpy; the first otherwise. Null without tensors.
  const Tensor* leader() const;
  /// The first object that was given for a tensor, before read_tensors; invalid without.
  nb::handle first_object() const;

 private:
  struct Value {
    const OpMember* member;
    nb::object object;
    std::string full_name;  ///< "topk: lens"
    Tensor tensor{};
    smla_tensor c_tensor{};
    smla_cache c_cache{};
    bool is_cache = false;
  };
  void add_scalar(const OpMember& member, nb::handle value);
  void add_tensor(const OpMember& member, nb::handle value);

  const OpRow& op_;
  std::list<std::string> words_{};  ///< texts that scalars refer to
  std::vector<NamedScalar> scalars_{};
  std::list<Value> values_{};  ///< a list: structs of the C interface point into it
};

/// How an implementation is chosen.
struct CallOptions {
  std::string implementation;
  bool deterministic = false;
  int threads = 0;
};

/// A plan of an op on one machine.
class Plan {
 public:
  Plan(const Call& call, const Place& place, const CallOptions& options);
  std::string implementation() const;
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const Place& place() const { return place_; }
  const OpRow& op() const { return op_; }
  /// Runs with the GIL released.
  void run(const Call& call, nb::handle workspace, void* stream, bool own_stream) const;

 private:
  struct Destroy {
    void operator()(smla_plan* plan) const { smla_plan_destroy(plan); }
  };
  const OpRow& op_;
  Place place_;
  std::unique_ptr<smla_plan, Destroy> plan_;
  std::size_t workspace_bytes_ = 0;
  const char* implementation_ = "";
};

/// Throws the exception of a status other than SMLA_OK, with the library's text.
void check_status(smla_status status);

/// Adds Cache, Plan and the calls to the module.
void bind_ops(nb::module_& module);

}  // namespace smla::python
