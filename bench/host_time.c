/* The host's time of one eager forward of a C4A layer through the C interface, on a stream that is already busy: what
 * the caller's thread pays to plan and queue it, whatever the GPU does meanwhile. A decode step of V4-Flash's layer 2.
 *
 *   host_time [requests] [tokens of a sequence]     default: 32 8192
 *
 * The stream is held by a host function while forwards are queued, so that no call can profit from an idle GPU; a call
 * that waited for the stream would show as its whole delay. Prints medians over rounds, in microseconds. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sparsemla/c_api.h"

enum { kRounds = 21, kForwards = 8, kHeldMs = 60, kBlocks = 1024, kMaxNames = 32 };

static void need(int ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "host_time: %s: %s\n", what, smla_last_error());
  exit(1);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void CUDART_CB hold_stream(void* unused) {
  const struct timespec delay = {0, kHeldMs * 1000000L};
  (void)unused;
  nanosleep(&delay, NULL);
}

static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values) {
  qsort(values, kRounds, sizeof *values, by_size);
  return values[kRounds / 2];
}

static void* device_memory(size_t bytes) {
  void* p = NULL;
  need(cudaMalloc(&p, bytes) == cudaSuccess && cudaMemset(p, 0, bytes) == cudaSuccess, "GPU memory");
  return p;
}

static size_t size_of(smla_dtype dtype) { return dtype == SMLA_BF16 ? 2 : dtype == SMLA_I64 ? 8 : 4; }

/* A contiguous tensor on the GPU with what `host` holds, or zeros. */
static smla_tensor make_tensor(const void* host, smla_dtype dtype, int32_t rank, int64_t a, int64_t b) {
  smla_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.rank = rank;
  t.shape[0] = a;
  t.shape[1] = b;
  const size_t bytes = size_of(dtype) * (size_t)a * (size_t)(rank == 2 ? b : 1);
  t.data = device_memory(bytes);
  if (host != NULL) need(cudaMemcpy(t.data, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess, "copy to the GPU");
  return t;
}

struct weights {
  const char* names[kMaxNames];
  smla_tensor tensors[kMaxNames];
  const smla_tensor* pointers[kMaxNames];
  int64_t count;
};

/* Weights of one product in one piece of memory: the layer finds them behind each other and multiplies once. */
static unsigned char* joined_memory;

static void begin_joined(int64_t rows, int64_t columns) { joined_memory = device_memory((size_t)(2 * rows * columns)); }

static void add_joined(struct weights* w, const char* name, int64_t rows, int64_t columns) {
  const int64_t i = w->count++;
  w->names[i] = name;
  smla_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = SMLA_BF16;
  t.rank = 2;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.data = joined_memory;
  joined_memory += 2 * rows * columns;
  w->tensors[i] = t;
  w->pointers[i] = &w->tensors[i];
}

static void add(struct weights* w, const char* name, smla_dtype dtype, int64_t rows, int64_t columns) {
  const int64_t i = w->count++;
  w->names[i] = name;
  w->tensors[i] = make_tensor(NULL, dtype, columns == 0 ? 1 : 2, rows, columns);
  w->pointers[i] = &w->tensors[i];
}

static void add_weights(struct weights* w, const smla_layer_config* c) {
  const int64_t dim = c->head_dim;
  const int64_t index = c->index_head_dim;
  w->count = 0;
  begin_joined(c->q_lora_rank + dim, c->hidden_size);
  add_joined(w, "wq_a.weight", c->q_lora_rank, c->hidden_size);
  add_joined(w, "wkv.weight", dim, c->hidden_size);
  add(w, "q_norm.weight", SMLA_BF16, c->q_lora_rank, 0);
  add(w, "wq_b.weight", SMLA_BF16, c->num_heads * dim, c->q_lora_rank);
  add(w, "kv_norm.weight", SMLA_BF16, dim, 0);
  add(w, "wo_a.weight", SMLA_BF16, c->o_groups * c->o_lora_rank, c->num_heads / c->o_groups * dim);
  add(w, "wo_b.weight", SMLA_BF16, c->hidden_size, c->o_groups * c->o_lora_rank);
  add(w, "attn_sink", SMLA_F32, c->num_heads, 0);
  begin_joined(4 * (dim + index), c->hidden_size);
  add_joined(w, "compressor.wkv.weight", 2 * dim, c->hidden_size);
  add_joined(w, "compressor.wgate.weight", 2 * dim, c->hidden_size);
  add_joined(w, "indexer.compressor.wkv.weight", 2 * index, c->hidden_size);
  add_joined(w, "indexer.compressor.wgate.weight", 2 * index, c->hidden_size);
  add(w, "compressor.ape", SMLA_F32, 4, 2 * dim);
  add(w, "compressor.norm.weight", SMLA_BF16, dim, 0);
  add(w, "indexer.compressor.ape", SMLA_F32, 4, 2 * index);
  add(w, "indexer.compressor.norm.weight", SMLA_BF16, index, 0);
  add(w, "indexer.wq_b.weight", SMLA_BF16, c->index_n_heads * index, c->q_lora_rank);
  add(w, "indexer.weights_proj.weight", SMLA_BF16, c->index_n_heads, c->hidden_size);
}

int main(int argc, char** argv) {
  const int64_t requests = argc > 1 ? strtoll(argv[1], NULL, 10) : 32;
  const int64_t length = argc > 2 ? strtoll(argv[2], NULL, 10) : 8192;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    printf("host_time: SKIP: no GPU\n");
    return 0;
  }
  need(requests > 0 && requests <= 1024 && length > 0 && length <= 1 << 20, "1 to 1024 requests of 1 to 2^20 tokens");

  smla_layer_config config;
  config.struct_size = sizeof config;
  need(smla_model_layer_config("v4-flash", 2, &config) == SMLA_OK && config.compress_ratio == 4, "layer 2 of v4-flash");
  smla_layer_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.max_position = length;
  options.device = SMLA_CUDA;
  static struct weights w;
  add_weights(&w, &config);
  smla_layer* layer = NULL;
  smla_step* step = NULL;
  need(smla_layer_create(&config, &options, w.names, w.pointers, w.count, &layer) == SMLA_OK, "smla_layer_create");
  need(smla_step_create(layer, &step) == SMLA_OK, "smla_step_create");

  cudaStream_t stream;
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
  smla_cache caches[SMLA_NUM_CACHES];
  smla_layer_caches layer_caches;
  memset(caches, 0, sizeof caches);
  memset(&layer_caches, 0, sizeof layer_caches);
  layer_caches.struct_size = sizeof layer_caches;
  smla_tensor tables[SMLA_NUM_CACHES];
  const smla_tensor* table_pointers[SMLA_NUM_CACHES] = {NULL};
  for (int role = 0; role < SMLA_NUM_CACHES; ++role) {
    smla_cache_need want;
    want.struct_size = sizeof want;
    need(smla_layer_cache_need(layer, role, &want) == SMLA_OK && want.present == 1, "smla_layer_cache_need");
    smla_cache* cache = &caches[role];
    cache->struct_size = sizeof *cache;
    cache->format = want.format;
    cache->num_blocks = kBlocks;
    cache->block_size = want.block_size;
    cache->block_stride_bytes = want.page_bytes;
    cache->base = device_memory((size_t)(kBlocks * want.page_bytes));
    layer_caches.cache[role] = cache;
    if (table_pointers[want.group] != NULL) continue;
    /* Requests share blocks: where rows lie does not matter to the host. */
    const int64_t columns = (length + want.block_tokens - 1) / want.block_tokens;
    int32_t* blocks = malloc((size_t)(requests * columns) * sizeof *blocks);
    need(blocks != NULL, "host memory");
    for (int64_t i = 0; i < requests * columns; ++i) blocks[i] = (int32_t)(i % kBlocks);
    tables[want.group] = make_tensor(blocks, SMLA_I32, 2, requests, columns);
    table_pointers[want.group] = &tables[want.group];
    free(blocks);
  }

  static int32_t starts[1025];
  static int32_t lens[1024];
  static int64_t positions[1024];
  for (int64_t r = 0; r < requests; ++r) {
    starts[r + 1] = (int32_t)(r + 1);
    lens[r] = (int32_t)length;
    positions[r] = length - 1;
  }
  const smla_tensor t_starts = make_tensor(starts, SMLA_I32, 1, requests + 1, 0);
  const smla_tensor t_lens = make_tensor(lens, SMLA_I32, 1, requests, 0);
  const smla_tensor t_positions = make_tensor(positions, SMLA_I64, 1, requests, 0);
  smla_step_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  batch.query_start_loc = &t_starts;
  batch.seq_lens = &t_lens;
  batch.positions = &t_positions;
  batch.block_tables = table_pointers;
  batch.num_block_tables = smla_layer_num_groups(layer);
  batch.max_seq_len = length;
  batch.host_query_start_loc = starts;
  batch.host_seq_lens = lens;
  batch.stream = stream;
  need(smla_step_build(step, &batch) == SMLA_OK, "smla_step_build");

  const smla_tensor hidden = make_tensor(NULL, SMLA_BF16, 2, requests, config.hidden_size);
  const smla_tensor output = make_tensor(NULL, SMLA_BF16, 2, requests, config.hidden_size);
  size_t bytes = 0;
  need(smla_layer_workspace(layer, requests, requests, length, &bytes) == SMLA_OK, "smla_layer_workspace");
  void* workspace = device_memory(bytes);
  smla_layer_plan* plan = NULL;
  need(smla_layer_plan_create(layer, step, &plan) == SMLA_OK, "smla_layer_plan_create");

  double forward[kRounds];
  double build[kRounds];
  for (int round = -2; round < kRounds; ++round) { /* two to warm up */
    need(cudaStreamSynchronize(stream) == cudaSuccess, "the stream");
    if (round >= 0) need(cudaLaunchHostFunc(stream, hold_stream, NULL) == cudaSuccess, "a host function");
    double start = seconds();
    for (int i = 0; i < kForwards; ++i) {
      need(smla_layer_forward(layer, plan, step, &layer_caches, &hidden, &output, workspace, bytes, stream) == SMLA_OK,
           "smla_layer_forward");
    }
    if (round >= 0) forward[round] = 1e6 * (seconds() - start) / kForwards;
    start = seconds();
    need(smla_step_build(step, &batch) == SMLA_OK, "smla_step_build");
    if (round >= 0) build[round] = 1e6 * (seconds() - start);
  }
  need(cudaStreamSynchronize(stream) == cudaSuccess, "the stream");
  printf("host time, C4A layer of v4-flash, %lld requests of %lld tokens, busy stream, median of %d rounds\n",
         (long long)requests, (long long)length, (int)kRounds);
  printf("  smla_layer_forward: %.1f us (mean of %d in a row)\n", median(forward), (int)kForwards);
  printf("  smla_step_build:    %.1f us\n", median(build));
  smla_layer_plan_destroy(plan);
  smla_step_destroy(step);
  smla_layer_destroy(layer);
  return 0;
}
