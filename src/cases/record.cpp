// Live calls to case files. A tensor is copied without its strides; of a cache the pages of those blocks that the call
// uses (block_use.h), not what other caches keep between them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "cases/block_use.h"
#include "cases/op_case.h"
#include "ops/call_observer.h"
#include "ops/staging.h"
#include "sparsemla/case.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

struct Recorder {
  std::mutex mutex;
  std::string folder;
  std::int64_t count = 0;
  std::int64_t bytes = 0;  ///< of the files
};
Recorder& recorder() {
  static Recorder instance;
  return instance;
}

HostTensor contiguous(const ConstTensorView& view) {
  const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  HostTensor out(view.dtype, shape);
  if (out.numel() == 0) return out;
  const std::int64_t row = shape.back();
  const auto bytes = static_cast<std::size_t>(row * size_of(view.dtype));
  for (std::int64_t i = 0; i < out.numel() / row; ++i) {
    std::int64_t at = 0;
    std::int64_t rest = i;
    for (int d = view.rank - 2; d >= 0; --d) {
      at += rest % view.size(d) * view.stride[static_cast<std::size_t>(d)];
      rest /= view.size(d);
    }
    std::memcpy(static_cast<std::uint8_t*>(out.data()) + static_cast<std::size_t>(i) * bytes,
                static_cast<const std::uint8_t*>(view.data) + at * size_of(view.dtype), bytes);
  }
  return out;
}

/// Pages of a cache: of `blocks`, or of all where that is null.
HostTensor pages(const PagedCache& cache, const std::vector<std::int64_t>* blocks) {
  const std::int64_t page = block_bytes(*cache.format, cache.block_size);
  const std::int64_t count = blocks == nullptr ? cache.num_blocks : static_cast<std::int64_t>(blocks->size());
  HostTensor out(DType::kU8, {count, page});
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t block = blocks == nullptr ? b : (*blocks)[static_cast<std::size_t>(b)];
    std::memcpy(out.as<std::uint8_t>() + b * page, cache.block(block), static_cast<std::size_t>(page));
  }
  return out;
}

/// New numbers for the blocks of a call: by cache, and by the tensor that names them.
struct Renumbering {
  explicit Renumbering(const std::vector<BlockUse>& uses) {
    for (const BlockUse& use : uses) {
      const PagedCache& first = *use.caches.front().cache;
      const bool alike = std::ranges::all_of(use.caches, [&](const BlockUse::Cache& c) {
        return c.cache->num_blocks == first.num_blocks && c.cache->block_size == first.block_size;
      });
      if (first.format == nullptr || !alike) continue;  // recorded whole, with the numbers they have
      const auto numbers = std::make_shared<const BlockNumbers>(use);
      for (const BlockUse::Cache& c : use.caches) caches[c.name] = numbers;
      for (const BlockUse::Tensor& t : use.slots) slots[t.name] = numbers;
      for (const BlockUse::Tensor& t : use.tables) tables[t.name] = numbers;
    }
  }
  const std::vector<std::int64_t>* kept(const std::string& cache) const {
    const auto found = caches.find(cache);
    return found == caches.end() ? nullptr : &found->second->kept();
  }
  HostTensor renamed(const std::string& tensor, HostTensor values) const {
    if (const auto found = slots.find(tensor); found != slots.end()) found->second->rename_slots(values);
    if (const auto found = tables.find(tensor); found != tables.end()) found->second->rename_blocks(values);
    return values;
  }
  using ByName = std::map<std::string, std::shared_ptr<const BlockNumbers>>;
  ByName caches{}, slots{}, tables{};
};

/// A case under construction.
struct Draft {
  Renumbering blocks;
  std::map<std::string, HostTensor> tensors{};
  std::string params{};
  std::string tolerance{};

  static void append(std::string& object, const std::string& key, const std::string& value) {
    object += (object.empty() ? "" : ", ") + json_string(key) + ": " + value;
  }
  void param(const std::string& key, const std::string& json) { append(params, key, json); }
  void param(const std::string& key, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    param(key, std::string(text));
  }
  /// What separates two implementations of the same op, not two runs of one.
  void bound(const std::string& result, DType dtype, bool set) {
    if (set) append(tolerance, result, "{\"set\": true}");
    if (dtype == DType::kF32) append(tolerance, result, "{\"l2\": 1e-5}");
    if (dtype == DType::kBF16) append(tolerance, result, "{\"l2\": 2.2e-3}");
    if (dtype == DType::kE4M3) append(tolerance, result, "{\"ulp\": 1}");
  }
  void write(std::string_view op) {
    Recorder& r = recorder();
    if (!tolerance.empty()) param("tolerance", "{" + tolerance + "}");
    char number[24];
    std::snprintf(number, sizeof number, "%06lld_", static_cast<long long>(r.count));
    std::map<std::string, const HostTensor*> list;
    for (const auto& [name, tensor] : tensors) list[name] = &tensor;
    const std::filesystem::path path =
        std::filesystem::path(r.folder) / (number + std::string(op) + std::string(kRecordedCaseSuffix));
    if (std::filesystem::exists(path))
      throw IoError("record_calls: " + path.string() + ": got a file of an earlier recording, expected none");
    write_case(path.string(), op, "{" + params + "}", list);
    r.bytes += static_cast<std::int64_t>(std::filesystem::file_size(path));
    ++r.count;
  }
};

struct WriteFields {
  Draft& draft;
  void operator()(const char* name, std::int64_t value) const { draft.param(name, std::to_string(value)); }
  void operator()(const char* name, int value) const { draft.param(name, std::to_string(value)); }
  void operator()(const char* name, float value) const { draft.param(name, static_cast<double>(value)); }
  void operator()(const char* name, bool value) const {
    draft.param(name, value ? std::string("true") : std::string("false"));
  }
  void operator()(const char* name, DType value) const { draft.param(name, json_string(name_of(value))); }
  void operator()(const char* name, const RowFormat* value) const {
    if (value != nullptr) draft.param(name, json_string(value->name));
  }
  void operator()(const char* name, ClampRule value) const { draft.param(name, json_string(rule_name(value))); }
  void operator()(const char* name, OutputScale value) const { draft.param(name, json_string(rule_name(value))); }
};

struct WriteBefore {
  Draft& draft;
  void in(const std::string& name, const ConstTensorView& view) const {
    if (!view.absent()) draft.tensors.insert_or_assign("in." + name, draft.blocks.renamed(name, contiguous(view)));
  }
  void out(const std::string& name, const TensorView& view) const {
    if (!view.absent()) draft.tensors.insert_or_assign("in." + name + "_before", contiguous(view));
  }
  void cache(const std::string& name, const PagedCache& cache, CacheAccess access) const {
    if (cache.format == nullptr) return;
    draft.param(name + "_format", json_string(cache.format->name));
    draft.param(name + "_block_size", std::to_string(cache.block_size));
    draft.param(name + "_scale", static_cast<double>(cache.scale));
    draft.tensors.insert_or_assign("in." + name + (access == CacheAccess::kWrite ? "_before" : ""),
                                   pages(cache, draft.blocks.kept(name)));
  }
};

struct WriteAfter {
  Draft& draft;
  bool set;  ///< rows of integers are sets
  void in(const std::string&, const ConstTensorView&) const {}
  void out(const std::string& name, const TensorView& view) const {
    if (view.absent()) return;
    draft.tensors.insert_or_assign("out." + name, contiguous(view));
    draft.bound(name, view.dtype, set && view.rank == 2);
  }
  void cache(const std::string& name, const PagedCache& cache, CacheAccess access) const {
    if (cache.format == nullptr || access == CacheAccess::kRead) return;
    draft.tensors.insert_or_assign("out." + name, pages(cache, draft.blocks.kept(name)));
    Draft::append(draft.tolerance, name,
                  "{\"rows\": {\"format\": " + json_string(cache.format->name) +
                      ", \"block_size\": " + std::to_string(cache.block_size) + ", \"steps\": 1, \"ulp\": 1}}");
  }
};

template <class Op>
void record_on_host(const typename Op::Problem& problem, const typename Op::Args& args,
                    const std::function<void()>& run) {
  typename Op::Problem p = problem;
  typename Op::Args a = args;
  Draft draft{.blocks = Renumbering(block_uses<Op>(problem, args))};
  OpDescription<Op>::fields(p, WriteFields{draft});
  OpDescription<Op>::tensors(a, WriteBefore{draft});
  run();
  OpDescription<Op>::tensors(a, WriteAfter{draft, std::string_view(Op::kName) == TopK::kName});
  draft.write(Op::kName);
}

/// sparse_attention has a form of its own, older than the others.
template <>
void record_on_host<SparseAttention>(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                                     const std::function<void()>& run) {
  Draft draft{.blocks = Renumbering(block_uses<SparseAttention>(problem, args))};
  draft.param("scale", static_cast<double>(problem.softmax_scale()));
  draft.param("q_scale", static_cast<double>(problem.q_scale));
  draft.param("partial", std::string(problem.partial ? "true" : "false"));
  draft.param("out_heads", std::to_string(problem.out_heads));
  draft.param("value_dim", std::to_string(problem.value_dim));
  if (problem.tokens_per_list > 1) draft.param("tokens_per_list", std::to_string(problem.tokens_per_list));
  const WriteBefore before{draft};
  before.in("q", args.q.slice(1, 0, problem.heads));
  if (problem.output_epilogue) {
    draft.param("rope_dim", std::to_string(problem.output_epilogue->rope_dim));
    before.in("positions", args.output_epilogue.positions), before.in("cos_sin", args.output_epilogue.cos_sin);
  }
  if (problem.query_prologue) {
    draft.param("q_rope_dim", std::to_string(problem.query_prologue->rope_dim));
    draft.param("q_eps", static_cast<double>(problem.query_prologue->eps));
    // Mostly those of the epilogue: a rope table is written once then.
    const SparseAttention::QueryPrologue::Args& prologue = args.query_prologue;
    const bool shared = problem.output_epilogue && prologue.positions.data == args.output_epilogue.positions.data &&
                        prologue.cos_sin.data == args.output_epilogue.cos_sin.data &&
                        problem.query_prologue->rope_dim == problem.output_epilogue->rope_dim;
    if (!shared) before.in("q_positions", prologue.positions), before.in("q_cos_sin", prologue.cos_sin);
  }
  before.in("sink", args.sink);
  for (int i = 0; i < problem.scopes; ++i) {
    const SparseAttention::Scope& scope = args.scopes[static_cast<std::size_t>(i)];
    const std::string suffix = std::to_string(i);
    draft.param("format" + suffix, json_string(scope.cache.format->name));
    draft.param("block_size" + suffix, std::to_string(scope.cache.block_size));
    draft.param("kv_scale" + suffix, static_cast<double>(scope.cache.scale));
    draft.tensors.insert_or_assign("in.cache" + suffix, pages(scope.cache, draft.blocks.kept("cache" + suffix)));
    const bool empty = problem.scope[static_cast<std::size_t>(i)].width == 0;
    if (empty) draft.tensors.insert_or_assign("in.indices" + suffix, HostTensor(DType::kI32, {problem.lists(), 0}));
    if (!empty) before.in("indices" + suffix, scope.indices);
    before.in("lens" + suffix, scope.lens), before.in("starts" + suffix, scope.starts);
  }
  run();
  const WriteAfter after{draft, false};
  after.out("o", args.o);
  after.out("lse", args.lse);
  draft.write(SparseAttention::kName);
}

template <class Op>
void record(const typename Op::Problem& problem, const typename Op::Args& args, const CallPlace& place,
            const std::function<void()>& run) {
  std::unique_lock lock(recorder().mutex);
  if (recorder().folder.empty()) {  // turned off since the call began
    lock.unlock();
    return run();
  }
  show_call<Op>(args, place, run, [&](const typename Op::Args& host, const std::function<void()>& go) {
    record_on_host<Op>(problem, host, go);
  });
}

}  // namespace

void record_calls(const std::string& folder) {
  const std::lock_guard lock(recorder().mutex);
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (!std::filesystem::is_directory(folder))
      throw IoError("record_calls: " + folder + ": got " + error.message() + ", expected a folder");
  }
  recorder().folder = folder;
  for_each_op([on = !folder.empty()]<class Op>() { call_observer<Op>.store(on ? record<Op> : nullptr); });
}

void record_calls_from_environment() {
  const char* folder = std::getenv("SMLA_DUMP");
  if (folder != nullptr && *folder != 0) record_calls(folder);
}

std::int64_t recorded_bytes() {
  const std::lock_guard lock(recorder().mutex);
  return recorder().bytes;
}

std::int64_t recorded_calls() {
  const std::lock_guard lock(recorder().mutex);
  return recorder().count;
}

}  // namespace smla
