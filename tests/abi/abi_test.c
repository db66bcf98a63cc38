/* Longer than 300 lines: the C interface from C alone, every expected number computed here in double. Prints each
 * failure; exit 1 when there is one. */
#include "abi.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 512, ROPE = 64 };

/* ---- sparse attention ---- */

static float from_bf16(uint16_t b) {
  const uint32_t u = (uint32_t)b << 16;
  float x;
  memcpy(&x, &u, 4);
  return x;
}

enum { T = 3, H = 2, HP = 3, W = 5, W2 = 3, BLOCKS = 3, BLOCK = 4, ROW = 2 * DIM, STRIDE = BLOCK * ROW + 64 };

static unsigned char cache_bytes[BLOCKS * STRIDE];
static uint16_t q[T][H][DIM];
static const int32_t indices[T][W] = {{0, 5, 11, -1, 7}, {12, -3, 900, 1, 2}, {4, 4, 6, 9, 10}};
static const int32_t lens[T] = {5, 3, 4}; /* token 1 sees nothing in the first scope */
static const int32_t indices2[T][W2] = {{3, 8, -1}, {-1, -1, -1}, {0, 1, 2}};
static const float sink[H] = {0.25F, -1.5F};

static double key(int32_t slot, int d) {
  uint16_t bits;
  memcpy(&bits, cache_bytes + (size_t)(slot / BLOCK) * STRIDE + (size_t)(slot % BLOCK) * ROW + 2 * (size_t)d, 2);
  return from_bf16(bits);
}

/* o and lse of token t, head h in double. */
static void expected_attention(int t, int h, int with_sink, double* o, double* lse) {
  double total = 0;
  int keys = 0;
  memset(o, 0, DIM * sizeof *o);
  for (int i = 0; i < W + W2; ++i) {
    if (i < W && i >= lens[t]) continue;
    const int32_t slot = i < W ? indices[t][i] : indices2[t][i - W];
    if (slot < 0 || slot >= BLOCKS * BLOCK) continue;
    double s = 0;
    for (int d = 0; d < DIM; ++d) s += from_bf16(q[t][h][d]) * key(slot, d);
    const double p = exp(s / sqrt(DIM));
    for (int d = 0; d < DIM; ++d) o[d] += p * key(slot, d);
    total += p;
    ++keys;
  }
  *lse = keys == 0 ? INFINITY : log(total);
  if (keys == 0) return;
  if (with_sink) total += exp((double)sink[h]);
  for (int d = 0; d < DIM; ++d) o[d] /= total;
}

struct attention {
  smla_tensor q, indices, indices2, lens, sink, o, lse;
  smla_cache cache;
  smla_attention_scope scope, scope2;
  smla_sparse_attention_args args;
};

static float o_out[T][HP][DIM];
static float lse_out[T][H];

static void make_attention(struct attention* a) {
  memset(a, 0, sizeof *a);
  for (size_t i = 0; i < sizeof cache_bytes / 2; ++i) {
    const uint16_t bits = to_bf16(next_number());
    memcpy(cache_bytes + 2 * i, &bits, 2);
  }
  for (int i = 0; i < T * H * DIM; ++i) (&q[0][0][0])[i] = to_bf16(next_number());
  a->q = tensor(q, SMLA_BF16, 3, T, H, DIM);
  a->indices = tensor((void*)indices, SMLA_I32, 2, T, W, 0);
  a->indices2 = tensor((void*)indices2, SMLA_I32, 2, T, W2, 0);
  a->lens = tensor((void*)lens, SMLA_I32, 1, T, 0, 0);
  a->sink = tensor((void*)sink, SMLA_F32, 1, H, 0, 0);
  a->o = tensor(o_out, SMLA_F32, 3, T, HP, DIM);
  a->lse = tensor(lse_out, SMLA_F32, 2, T, H, 0);
  a->cache.struct_size = sizeof a->cache;
  a->cache.format = "bf16";
  a->cache.base = cache_bytes;
  a->cache.num_blocks = BLOCKS;
  a->cache.block_size = BLOCK;
  a->cache.block_stride_bytes = STRIDE;
  a->scope.struct_size = sizeof a->scope;
  a->scope.cache = &a->cache;
  a->scope.indices = &a->indices;
  a->scope.lens = &a->lens;
  a->scope2 = a->scope;
  a->scope2.indices = &a->indices2;
  a->scope2.lens = NULL;
  a->args.struct_size = sizeof a->args;
  a->args.q = &a->q;
  a->args.scope = &a->scope;
  a->args.scope2 = &a->scope2;
  a->args.sink = &a->sink;
  a->args.o = &a->o;
  a->args.lse = &a->lse;
  a->args.threads = 1;
}

static void run_attention(const smla_sparse_attention_args* args) {
  size_t bytes = 0;
  CHECK(smla_sparse_attention_workspace(args, &bytes, NULL) == SMLA_OK);
  void* workspace = aligned_memory(bytes);
  CHECK(smla_sparse_attention(args, workspace, bytes) == SMLA_OK);
  if (bytes > 0) CHECK_ERROR(smla_sparse_attention(args, workspace, bytes - 1), SMLA_INVALID_ARGUMENT, "workspace");
  CHECK(smla_sparse_attention(args, workspace, bytes) == SMLA_OK);
  free(workspace);
}

static void test_attention(const char* implementation) {
  struct attention a;
  make_attention(&a);
  a.args.implementation = implementation;
  memset(o_out, 0xFF, sizeof o_out);
  run_attention(&a.args);
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < H; ++h) {
      double o[DIM];
      double lse;
      expected_attention(t, h, 1, o, &lse);
      CHECK(isinf(lse) ? isinf(lse_out[t][h]) && lse_out[t][h] > 0 : fabs(lse - lse_out[t][h]) < 1e-5);
      double worst = 0;
      for (int d = 0; d < DIM; ++d) worst = fmax(worst, fabs(o[d] - o_out[t][h][d]));
      CHECK(worst < 4e-3); /* fast implementations round weights to bf16 */
      if (implementation != NULL && strcmp(implementation, "ref") == 0) CHECK(worst < 1e-6);
    }
    for (int d = 0; d < DIM; ++d) CHECK(o_out[t][H][d] == 0); /* the head past H */
  }
}

/* Values that are the first numbers of their keys. */
static void test_values(void) {
  enum { VALUES = 96 };
  static float narrow[T][HP][VALUES];
  struct attention a;
  make_attention(&a);
  a.o = tensor(narrow, SMLA_F32, 3, T, HP, VALUES);
  size_t bytes = 0;
  CHECK(smla_sparse_attention_workspace(&a.args, &bytes, NULL) == SMLA_OK);
  void* workspace = aligned_memory(bytes);
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "o: got");
  free(workspace);
  a.args.value_dim = VALUES;
  memset(narrow, 0xFF, sizeof narrow);
  run_attention(&a.args);
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < H; ++h) {
      double o[DIM];
      double lse;
      expected_attention(t, h, 1, o, &lse);
      for (int d = 0; d < VALUES; ++d) CHECK(fabs(o[d] - narrow[t][h][d]) < 4e-3);
    }
    for (int d = 0; d < VALUES; ++d) CHECK(narrow[t][H][d] == 0);
  }
}

/* Three queries that share a row of indices have the numbers that they have with rows of their own. */
static void test_shared_rows(void) {
  static float alone[T][H][DIM];
  static float shared[T][H][DIM];
  static const int32_t starts[T] = {0, 1, 3};
  static const int32_t counts[T] = {2, 4, 9};
  int32_t own[T][W];
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < W; ++i) own[t][i] = i >= starts[t] && i < starts[t] + counts[t] ? indices[0][i] : -1;
  }
  struct attention a;
  make_attention(&a);
  a.args.scope2 = NULL;
  a.scope.lens = NULL;
  a.indices = tensor(own, SMLA_I32, 2, T, W, 0);
  a.o = tensor(alone, SMLA_F32, 3, T, H, DIM);
  a.args.implementation = "ref";
  run_attention(&a.args);
  smla_tensor first = tensor((void*)starts, SMLA_I32, 1, T, 0, 0);
  a.scope.starts = &first;
  CHECK_ERROR(smla_sparse_attention_workspace(&a.args, NULL, NULL), SMLA_OK, "");
  CHECK_ERROR(smla_sparse_attention(&a.args, NULL, 0), SMLA_INVALID_ARGUMENT, "starts");
  a.args.tokens_per_list = 2;
  CHECK_ERROR(smla_sparse_attention_workspace(&a.args, NULL, NULL), SMLA_INVALID_ARGUMENT, "tokens_per_list");
  a.args.tokens_per_list = T;
  CHECK_ERROR(smla_sparse_attention(&a.args, NULL, 0), SMLA_INVALID_ARGUMENT, "indices");
  a.indices = tensor((void*)indices, SMLA_I32, 2, 1, W, 0);
  a.lens = tensor((void*)counts, SMLA_I32, 1, T, 0, 0);
  a.scope.lens = &a.lens;
  a.o = tensor(shared, SMLA_F32, 3, T, H, DIM);
  run_attention(&a.args);
  CHECK(memcmp(alone, shared, sizeof alone) == 0);
  a.o = tensor(o_out, SMLA_F32, 3, T, HP, DIM);
  CHECK_ERROR(smla_sparse_attention_workspace(&a.args, NULL, NULL), SMLA_INVALID_ARGUMENT, "out_heads");
  /* A caller compiled before rows were shared. */
  a.o = tensor(shared, SMLA_F32, 3, T, H, DIM);
  a.indices = tensor(own, SMLA_I32, 2, T, W, 0);
  a.scope.lens = NULL;
  a.scope.struct_size = offsetof(smla_attention_scope, starts);
  a.args.struct_size = offsetof(smla_sparse_attention_args, tokens_per_list);
  memset(shared, 0xFF, sizeof shared);
  run_attention(&a.args);
  CHECK(memcmp(alone, shared, sizeof alone) == 0);
}

/* Slices without sink, merged with it, are the whole. */
static void test_partial(void) {
  static float partial_o[2][T][H][DIM];
  static float partial_lse[2][T][H];
  static float merged[T][H][DIM];
  struct attention a;
  make_attention(&a);
  a.args.implementation = "ref";
  a.args.partial = 1;
  CHECK_ERROR(smla_sparse_attention_workspace(&a.args, NULL, NULL), SMLA_OK, "");
  CHECK_ERROR(smla_sparse_attention(&a.args, NULL, 0), SMLA_INVALID_ARGUMENT, "sink");
  a.args.sink = NULL;
  a.args.scope2 = NULL;
  for (int i = 0; i < 2; ++i) {
    a.o = tensor(partial_o[i], SMLA_F32, 3, T, H, DIM);
    a.lse = tensor(partial_lse[i], SMLA_F32, 2, T, H, 0);
    if (i == 1) a.args.scope = &a.scope2;
    run_attention(&a.args);
  }
  CHECK(isinf(partial_lse[0][1][0]) == 0 || partial_lse[0][1][0] < 0);
  CHECK(isinf(partial_lse[1][1][0]) && partial_lse[1][1][0] < 0);
  smla_tensor po = tensor(partial_o, SMLA_F32, 4, 2, T, H);
  po.shape[3] = DIM;
  const smla_tensor pl = tensor(partial_lse, SMLA_F32, 3, 2, T, H);
  const smla_tensor o = tensor(merged, SMLA_F32, 3, T, H, DIM);
  CHECK(smla_merge_partials(&po, &pl, &a.sink, &o, NULL, SMLA_CPU, NULL) == SMLA_OK);
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < H; ++h) {
      double want[DIM];
      double lse;
      expected_attention(t, h, 1, want, &lse);
      for (int d = 0; d < DIM; ++d) CHECK(fabs(want[d] - merged[t][h][d]) < 1e-6);
    }
  }
  CHECK_ERROR(smla_merge_partials(&pl, &pl, NULL, &o, NULL, SMLA_CPU, NULL), SMLA_INVALID_ARGUMENT, "partial_o");
}

static void test_attention_errors(void) {
  struct attention a;
  make_attention(&a);
  size_t bytes = 0;
  const char* name = NULL;
  CHECK(smla_sparse_attention_workspace(&a.args, &bytes, &name) == SMLA_OK && name != NULL && strlen(name) > 0);
  CHECK(strcmp(smla_last_error(), "") == 0);
  CHECK_ERROR(smla_sparse_attention_workspace(NULL, &bytes, NULL), SMLA_INVALID_ARGUMENT, "NULL");
  /* A caller compiled before there were devices. */
  a.args.struct_size = offsetof(smla_sparse_attention_args, device);
  a.args.device = 7;
  CHECK(smla_sparse_attention_workspace(&a.args, &bytes, &name) == SMLA_OK);

#define WITH(change, word)                                                                            \
  do {                                                                                                \
    make_attention(&a);                                                                               \
    change;                                                                                           \
    CHECK_ERROR(smla_sparse_attention_workspace(&a.args, &bytes, NULL), SMLA_INVALID_ARGUMENT, word); \
  } while (0)
  WITH(a.args.struct_size = 0, "struct_size 0");
  WITH(a.args.struct_size = offsetof(smla_sparse_attention_args, implementation), "struct_size");
  WITH(a.args.device = 7, "device: got 7");
  WITH(a.args.struct_size = 1U << 30, "struct_size");
  WITH(a.q.struct_size = 1, "q: got struct_size 1");
  WITH(a.cache.struct_size = 0, "scope.cache");
  WITH(a.args.q = NULL, "q: got no tensor");
  WITH(a.args.o = NULL, "o: got no tensor");
  WITH(a.args.scope = NULL, "scope: got NULL");
  WITH(a.scope.cache = NULL, "scope.cache: got NULL");
  WITH(a.scope.indices = NULL, "scope.indices");
  WITH(a.cache.format = NULL, "no format");
  WITH(a.cache.format = "fp7", "\"fp7\"");
  WITH(a.cache.format = "index_fp8", "128");
  WITH(a.cache.num_blocks = -1, "-1 blocks");
  WITH(a.cache.num_blocks = INT64_MAX / 2, "2^63");
  WITH(a.cache.block_size = 0, "block size 0");
  WITH(a.cache.block_size = INT64_MAX / 2, "expected 1 to 2147483647");
  WITH(a.q.dtype = 0, "q: got dtype 0");
  WITH(a.q.dtype = 99, "q: got dtype 99");
  WITH(a.q.dtype = SMLA_U8, "q dtype");
  WITH(a.q.rank = 5, "q: got rank 5");
  WITH(a.q.rank = -1, "q: got rank -1");
  WITH(a.q.shape[0] = -1, "dimension 0 of -1");
  WITH(a.q.shape[0] = INT64_MAX / 2, "2^63");
  WITH((a.q.strides[0] = -DIM, a.q.strides[2] = 1), "stride 0");
  WITH(a.q.data = (char*)q + 1, "not aligned");
  WITH(a.args.partial = 2, "partial: got 2");
  WITH(a.args.reserved = 1, "reserved");
  WITH(a.args.threads = 1 << 20, "threads");
  WITH(a.args.heads = 129, "heads");
  WITH(a.args.value_dim = -1, "value_dim: got -1");
  WITH(a.args.value_dim = DIM + 1, "value_dim");
  WITH(a.args.implementation = "gpu", "\"gpu\"");
#undef WITH

  make_attention(&a);
  CHECK(smla_sparse_attention_workspace(&a.args, &bytes, NULL) == SMLA_OK);
  char* workspace = aligned_memory(bytes + 64);
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace + 8, bytes), SMLA_INVALID_ARGUMENT, "not aligned");
  CHECK_ERROR(smla_sparse_attention(&a.args, NULL, 64), SMLA_INVALID_ARGUMENT, "workspace");
  a.indices.dtype = SMLA_I64;
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "indices");
  make_attention(&a);
  a.cache.base = NULL;
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "cache");
  a.cache.base = cache_bytes;
  a.cache.block_stride_bytes = 8;
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "stride");
  make_attention(&a);
  a.o.strides[0] = 0; /* every token's rows in one place */
  a.o.strides[1] = DIM;
  a.o.strides[2] = 1;
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "o: got");
  a.o.strides[0] = HP * DIM - 1; /* rows that overlap by one number */
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "must not overlap");
  make_attention(&a);
  a.lse.strides[0] = H - 1;
  a.lse.strides[1] = 1;
  CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "lse: got");
  free(workspace);
  const float scales[] = {NAN, INFINITY, -1.0F};
  for (size_t i = 0; i < sizeof scales / sizeof scales[0]; ++i) {
    make_attention(&a);
    a.cache.format = "fp8_per_tensor";
    a.cache.kv_scale = scales[i];
    CHECK(smla_sparse_attention_workspace(&a.args, &bytes, NULL) == SMLA_OK);
    workspace = aligned_memory(bytes + 64);
    CHECK_ERROR(smla_sparse_attention(&a.args, workspace, bytes), SMLA_INVALID_ARGUMENT, "scale");
    free(workspace);
  }
}

/* A caller with a newer header: fields that the library does not know must be 0. */
static void test_newer_caller(void) {
  struct attention a;
  struct {
    smla_sparse_attention_args known;
    uint64_t newer;
  } args;
  make_attention(&a);
  args.known = a.args;
  args.known.struct_size = sizeof args;
  args.newer = 0;
  CHECK(smla_sparse_attention_workspace(&args.known, NULL, NULL) == SMLA_OK);
  args.newer = 1;
  CHECK_ERROR(smla_sparse_attention_workspace(&args.known, NULL, NULL), SMLA_INVALID_ARGUMENT, "newer");
}

/* ---- a window-only layer in float32 ---- */

enum { HIDDEN = 16, Q_LORA = 8, O_LORA = 4, GROUPS = 2, TOKENS = 6, NAMES = 8 };

static float wq_a[Q_LORA][HIDDEN], q_norm[Q_LORA], wq_b[H * DIM][Q_LORA], wkv[DIM][HIDDEN], kv_norm[DIM],
    wo_a[GROUPS * O_LORA][H / GROUPS * DIM], wo_b[HIDDEN][GROUPS * O_LORA], attn_sink[H], hidden[TOKENS][HIDDEN],
    output[TOKENS][HIDDEN];

static void fill(float* x, size_t n, float scale) {
  for (size_t i = 0; i < n; ++i) x[i] = scale * next_number();
}

static void rms_norm(double* x, int n, const float* w) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  for (int i = 0; i < n; ++i) x[i] *= (w == NULL ? 1.0 : w[i]) / sqrt(squares / n + 1e-6);
}

static void rotate(double* x, int position, int sign) {
  for (int i = 0; i < ROPE / 2; ++i) {
    const double angle = position * pow(10000.0, -2.0 * i / ROPE);
    double* even = x + DIM - ROPE + 2 * i;
    const double e = even[0] * cos(angle) - sign * even[1] * sin(angle);
    even[1] = even[1] * cos(angle) + sign * even[0] * sin(angle);
    even[0] = e;
  }
}

static void expected_layer(int token, double* out) {
  static double keys[TOKENS][DIM];
  for (int t = 0; t <= token; ++t) {
    for (int d = 0; d < DIM; ++d) {
      keys[t][d] = 0;
      for (int i = 0; i < HIDDEN; ++i) keys[t][d] += (double)wkv[d][i] * hidden[t][i];
    }
    rms_norm(keys[t], DIM, kv_norm);
    rotate(keys[t], t, 1);
  }
  double qr[Q_LORA] = {0};
  for (int r = 0; r < Q_LORA; ++r) {
    for (int i = 0; i < HIDDEN; ++i) qr[r] += (double)wq_a[r][i] * hidden[token][i];
  }
  rms_norm(qr, Q_LORA, q_norm);
  double z[GROUPS * O_LORA] = {0};
  for (int h = 0; h < H; ++h) {
    double query[DIM];
    double o[DIM] = {0};
    double total = exp((double)attn_sink[h]);
    for (int d = 0; d < DIM; ++d) {
      query[d] = 0;
      for (int r = 0; r < Q_LORA; ++r) query[d] += wq_b[h * DIM + d][r] * qr[r];
    }
    rms_norm(query, DIM, NULL);
    rotate(query, token, 1);
    for (int t = 0; t <= token; ++t) {
      double s = 0;
      for (int d = 0; d < DIM; ++d) s += query[d] * keys[t][d];
      const double p = exp(s / sqrt(DIM));
      total += p;
      for (int d = 0; d < DIM; ++d) o[d] += p * keys[t][d];
    }
    for (int d = 0; d < DIM; ++d) o[d] /= total;
    rotate(o, token, -1);
    for (int r = 0; r < O_LORA; ++r) { /* one head a group */
      for (int d = 0; d < DIM; ++d) z[h * O_LORA + r] += wo_a[h * O_LORA + r][d] * o[d];
    }
  }
  for (int i = 0; i < HIDDEN; ++i) {
    out[i] = 0;
    for (int r = 0; r < GROUPS * O_LORA; ++r) out[i] += wo_b[i][r] * z[r];
  }
}

static const char* const names[NAMES] = {"wq_a.weight",    "q_norm.weight", "wq_b.weight", "wkv.weight",
                                         "kv_norm.weight", "wo_a.weight",   "wo_b.weight", "attn_sink"};

struct layer_test {
  smla_layer_config config;
  smla_layer_options options;
  smla_tensor weights[NAMES];
  const smla_tensor* pointers[NAMES];
};

static void make_layer_test(struct layer_test* l) {
  memset(l, 0, sizeof *l);
  l->config.struct_size = sizeof l->config;
  l->config.hidden_size = HIDDEN;
  l->config.num_heads = H;
  l->config.q_lora_rank = Q_LORA;
  l->config.o_lora_rank = O_LORA;
  l->config.o_groups = GROUPS;
  l->options.struct_size = sizeof l->options;
  l->options.max_position = 32;
  l->options.precision = SMLA_F32;
  l->options.threads = 1;
  l->weights[0] = tensor(wq_a, SMLA_F32, 2, Q_LORA, HIDDEN, 0);
  l->weights[1] = tensor(q_norm, SMLA_F32, 1, Q_LORA, 0, 0);
  l->weights[2] = tensor(wq_b, SMLA_F32, 2, H * DIM, Q_LORA, 0);
  l->weights[3] = tensor(wkv, SMLA_F32, 2, DIM, HIDDEN, 0);
  l->weights[4] = tensor(kv_norm, SMLA_F32, 1, DIM, 0, 0);
  l->weights[5] = tensor(wo_a, SMLA_F32, 2, GROUPS * O_LORA, H / GROUPS * DIM, 0);
  l->weights[6] = tensor(wo_b, SMLA_F32, 2, HIDDEN, GROUPS * O_LORA, 0);
  l->weights[7] = tensor(attn_sink, SMLA_F32, 1, H, 0, 0);
  for (int i = 0; i < NAMES; ++i) l->pointers[i] = &l->weights[i];
}

/* Feeds tokens [begin, end) of one request. */
static smla_status feed(const smla_layer* layer, smla_step* step, const smla_layer_caches* caches, int begin, int end) {
  const int n = end - begin;
  int32_t loc[2] = {0, n};
  int32_t seq = end;
  int64_t positions[TOKENS];
  int32_t table[1] = {1}; /* the sequence lives in block 1 */
  for (int i = 0; i < n; ++i) positions[i] = begin + i;
  const smla_tensor t_loc = tensor(loc, SMLA_I32, 1, 2, 0, 0);
  const smla_tensor t_seq = tensor(&seq, SMLA_I32, 1, 1, 0, 0);
  const smla_tensor t_positions = tensor(positions, SMLA_I64, 1, n, 0, 0);
  const smla_tensor t_table = tensor(table, SMLA_I32, 2, 1, 1, 0);
  const smla_tensor* tables[1] = {&t_table};
  smla_step_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  batch.query_start_loc = &t_loc;
  batch.seq_lens = &t_seq;
  batch.positions = &t_positions;
  batch.block_tables = tables;
  batch.num_block_tables = 1;
  loc[0] = 5;
  CHECK_ERROR(smla_step_build(step, &batch), SMLA_INVALID_ARGUMENT, "query_start_loc row 0: got 5, expected 0");
  loc[0] = 0;
  smla_status status = smla_step_build(step, &batch);
  if (status != SMLA_OK) return status;
  memset(loc, 0xFF, sizeof loc); /* nothing of the batch needs to stay */
  table[0] = 77;

  smla_tensor slots;
  slots.struct_size = sizeof slots;
  CHECK(smla_step_get_tensor(step, "window_slots", &slots) == SMLA_OK);
  CHECK(slots.dtype == SMLA_I64 && slots.rank == 1 && slots.shape[0] == n);
  for (int i = 0; i < n; ++i) CHECK(((const int64_t*)slots.data)[i] == 64 + begin + i);

  size_t bytes = 0;
  CHECK(smla_layer_workspace(layer, n, 1, end, &bytes) == SMLA_OK);
  void* workspace = aligned_memory(bytes);
  const smla_tensor in = tensor(hidden[begin], SMLA_F32, 2, n, HIDDEN, 0);
  const smla_tensor out = tensor(output[begin], SMLA_F32, 2, n, HIDDEN, 0);
  status = smla_layer_forward(layer, NULL, step, caches, &in, &out, workspace, bytes, NULL);
  if (status == SMLA_OK) { /* again with a plan made before: the same bits */
    float before[TOKENS][HIDDEN];
    smla_layer_plan* plan = NULL;
    size_t planned = 0;
    memcpy(before, output[begin], (size_t)n * sizeof before[0]);
    memset(output[begin], 0xFF, (size_t)n * sizeof before[0]);
    CHECK(smla_layer_plan_create(layer, step, &plan) == SMLA_OK);
    CHECK(smla_layer_plan_workspace(plan, &planned) == SMLA_OK && planned > 0 && planned <= bytes);
    CHECK_ERROR(smla_layer_forward(layer, plan, step, caches, &in, &out, workspace, planned - 1, NULL),
                SMLA_INVALID_ARGUMENT, "workspace");
    CHECK(smla_layer_forward(layer, plan, step, caches, &in, &out, workspace, planned, NULL) == SMLA_OK);
    CHECK(memcmp(before, output[begin], (size_t)n * sizeof before[0]) == 0);
    smla_layer_plan_destroy(plan);
  }
  free(workspace);
  return status;
}

static void test_layer(const char* front_end) {
  struct layer_test l;
  smla_layer* layer = NULL;
  smla_step* step = NULL;
  fill(&wq_a[0][0], Q_LORA * HIDDEN, 1);
  fill(&wq_b[0][0], (size_t)H * DIM * Q_LORA, 1);
  fill(&wkv[0][0], (size_t)DIM * HIDDEN, 1);
  fill(&wo_a[0][0], (size_t)GROUPS * O_LORA * (H / GROUPS) * DIM, 0.25F);
  fill(&wo_b[0][0], HIDDEN * GROUPS * O_LORA, 1);
  fill(&hidden[0][0], (size_t)TOKENS * HIDDEN, 1);
  fill(attn_sink, H, 2);
  for (int i = 0; i < Q_LORA; ++i) q_norm[i] = 1 + next_number() / 4;
  for (int i = 0; i < DIM; ++i) kv_norm[i] = 1 + next_number() / 4;

  make_layer_test(&l);
  l.options.front_end = front_end;
  CHECK(smla_layer_create(&l.config, &l.options, names, l.pointers, NAMES, &layer) == SMLA_OK);
  CHECK(smla_step_create(layer, &step) == SMLA_OK);
  CHECK(smla_layer_num_groups(layer) == 1);
  smla_cache_need need;
  need.struct_size = sizeof need;
  CHECK(smla_layer_cache_need(layer, SMLA_CACHE_STATE, &need) == SMLA_OK && need.present == 0);
  CHECK(smla_layer_cache_need(layer, SMLA_CACHE_WINDOW, &need) == SMLA_OK && need.present == 1);
  CHECK(need.group == 0 && need.block_size == 64 && need.block_tokens == 64 && need.window == 128 &&
        strcmp(need.format, "f32") == 0);
  int64_t block = 0;
  int64_t page = 0;
  CHECK(smla_cache_block_bytes(need.format, need.block_size, &block, &page) == SMLA_OK && block == 64 * 4 * DIM &&
        page == need.page_bytes);

  smla_cache cache;
  memset(&cache, 0, sizeof cache);
  cache.struct_size = sizeof cache;
  cache.format = need.format;
  cache.base = aligned_memory((size_t)(2 * need.page_bytes));
  cache.num_blocks = 2;
  cache.block_size = need.block_size;
  cache.block_stride_bytes = need.page_bytes;
  smla_layer_caches caches;
  memset(&caches, 0, sizeof caches);
  caches.struct_size = sizeof caches;
  caches.cache[SMLA_CACHE_WINDOW] = &cache;

  const smla_tensor any = tensor(hidden, SMLA_F32, 2, TOKENS, HIDDEN, 0);
  CHECK_ERROR(smla_layer_forward(layer, NULL, step, &caches, &any, &any, NULL, 0, NULL), SMLA_INVALID_ARGUMENT,
              "not built");
  CHECK(feed(layer, step, &caches, 0, 4) == SMLA_OK); /* a prefill, then two decodes */
  CHECK(feed(layer, step, &caches, 4, 5) == SMLA_OK);
  CHECK(feed(layer, step, &caches, 5, 6) == SMLA_OK);
  for (int t = 0; t < TOKENS; ++t) {
    double want[HIDDEN];
    expected_layer(t, want);
    double error = 0;
    double size = 0;
    for (int i = 0; i < HIDDEN; ++i) {
      error += (want[i] - output[t][i]) * (want[i] - output[t][i]);
      size += want[i] * want[i];
    }
    CHECK(size > 0.01 && sqrt(error / size) < 1e-5);
  }

  CHECK_ERROR(feed(layer, step, &caches, 30, 33), SMLA_INVALID_ARGUMENT, "max_seq_len"); /* past the rope table */
  cache.block_size = 32;
  CHECK_ERROR(feed(layer, step, &caches, 0, 1), SMLA_INVALID_ARGUMENT, "window cache: got blocks of 32");
  cache.block_size = 64;
  cache.format = "bf16";
  CHECK_ERROR(feed(layer, step, &caches, 0, 1), SMLA_INVALID_ARGUMENT, "window cache");
  caches.cache[SMLA_CACHE_INDEX] = &cache;
  cache.format = "f32";
  CHECK_ERROR(feed(layer, step, &caches, 0, 1), SMLA_INVALID_ARGUMENT, "index cache");
  caches.cache[SMLA_CACHE_INDEX] = NULL;
  caches.cache[SMLA_CACHE_WINDOW] = NULL;
  CHECK_ERROR(feed(layer, step, &caches, 0, 1), SMLA_INVALID_ARGUMENT, "window cache: got NULL");
  smla_tensor slots;
  slots.struct_size = sizeof slots;
  CHECK_ERROR(smla_step_get_tensor(step, "entry_slots", &slots), SMLA_INVALID_ARGUMENT, "window_slots");
  smla_layer_config config;
  config.struct_size = sizeof config;
  CHECK(smla_layer_get_config(layer, &config) == SMLA_OK && config.hidden_size == HIDDEN && config.window == 128 &&
        config.compress_ratio == 1);
  smla_step_destroy(step);
  smla_layer_destroy(layer);
  free(cache.base);
}

static void test_layer_errors(void) {
  struct layer_test l;
  smla_layer* layer = NULL;
#define WITH(change, count, word)                                                                                  \
  do {                                                                                                             \
    make_layer_test(&l);                                                                                           \
    change;                                                                                                        \
    CHECK_ERROR(smla_layer_create(&l.config, &l.options, names, l.pointers, count, &layer), SMLA_INVALID_ARGUMENT, \
                word);                                                                                             \
    CHECK(layer == NULL);                                                                                          \
  } while (0)
  WITH(l.config.struct_size = 7, NAMES, "smla_layer_config: got struct_size 7");
  WITH(l.options.front_end = "flashmlo", NAMES, "front-end: got \"flashmlo\"");
  WITH(l.options.output_rows = "fp4", NAMES, "output_rows: got \"fp4\"");
  WITH(l.options.implementation = "frob", NAMES, "got frob, expected one of");
  WITH(l.options.implementation = "cuda", NAMES, "got cuda, expected one of");
  WITH(l.options.kv_scale = NAN, NAMES, "kv_scale: got");
  WITH(l.options.kv_scale = INFINITY, NAMES, "kv_scale: got inf");
  WITH(l.options.q_scale = NAN, NAMES, "q_scale: got");
  WITH(l.options.padded_heads = 129, NAMES, "padded_heads: got 129");
  WITH(l.options.strict = 2, NAMES, "strict");
  WITH(l.options.struct_size = 7, NAMES, "smla_layer_options: got struct_size 7");
  WITH(l.options.max_position = 0, NAMES, "max_position");
  WITH(l.options.cache_rows = "fp5", NAMES, "\"fp5\"");
  WITH(l.options.cache_rows = "index_fp8", NAMES, "cache_rows");
  WITH(l.options.precision = SMLA_I32, NAMES, "precision");
  WITH(l.config.compress_ratio = 5, NAMES, "compress_ratio");
  WITH(l.config.compress_ratio = 4, NAMES, "compressor.wkv.weight");
  WITH((void)l, NAMES - 1, "attn_sink: got no such tensor");
  WITH(l.pointers[2] = NULL, NAMES, "wq_b.weight");
  WITH(l.weights[3].dtype = SMLA_I32, NAMES, "wkv");
  WITH(l.weights[3].shape[0] = DIM - 1, NAMES, "wkv");
  WITH(l.weights[3].data = NULL, NAMES, "wkv");
#undef WITH
  make_layer_test(&l);
  const char* wrong[NAMES];
  memcpy(wrong, names, sizeof wrong);
  wrong[0] = "wq_z.weight";
  CHECK_ERROR(smla_layer_create(&l.config, &l.options, wrong, l.pointers, NAMES, &layer), SMLA_INVALID_ARGUMENT,
              "wq_z.weight: got a tensor");
  wrong[0] = names[1];
  CHECK_ERROR(smla_layer_create(&l.config, &l.options, wrong, l.pointers, NAMES, &layer), SMLA_INVALID_ARGUMENT,
              "twice");
  CHECK_ERROR(smla_layer_create(&l.config, &l.options, NULL, l.pointers, NAMES, &layer), SMLA_INVALID_ARGUMENT,
              "names");
  CHECK_ERROR(smla_layer_create(&l.config, &l.options, names, l.pointers, NAMES, NULL), SMLA_INVALID_ARGUMENT, "layer");
  CHECK_ERROR(smla_layer_create_from_checkpoint("/no/such/folder", 0, &l.options, 0, 1, &layer), SMLA_IO_ERROR,
              "/no/such/folder");

  smla_layer_config config;
  config.struct_size = sizeof config;
  CHECK(smla_model_layer_config("v4-flash", 2, &config) == SMLA_OK);
  CHECK(config.hidden_size == 4096 && config.num_heads == 64 && config.compress_ratio == 4 && config.yarn_factor == 16);
  CHECK_ERROR(smla_model_layer_config("v4-flash", 999, &config), SMLA_INVALID_ARGUMENT, "999");
  CHECK_ERROR(smla_model_layer_config("no-such-model", 0, &config), SMLA_IO_ERROR, "no-such-model");
  CHECK_ERROR(smla_model_layer_config(NULL, 0, &config), SMLA_INVALID_ARGUMENT, "model");
  CHECK_ERROR(smla_cache_block_bytes("fp7", 64, NULL, NULL), SMLA_INVALID_ARGUMENT, "fp7");
  CHECK_ERROR(smla_step_build(NULL, NULL), SMLA_INVALID_ARGUMENT, "step");
  smla_layer_plan* plan = NULL;
  CHECK_ERROR(smla_layer_plan_create(NULL, NULL, &plan), SMLA_INVALID_ARGUMENT, "layer");
  CHECK_ERROR(smla_layer_plan_create(NULL, NULL, NULL), SMLA_INVALID_ARGUMENT, "plan");
  CHECK_ERROR(smla_layer_plan_workspace(NULL, NULL), SMLA_INVALID_ARGUMENT, "plan");
  smla_layer_destroy(NULL);
  smla_step_destroy(NULL);
  smla_layer_plan_destroy(NULL);
}

int main(void) {
  int32_t major = -1;
  int32_t minor = -1;
  int32_t patch = -1;
  char version[64];
  smla_version_numbers(&major, &minor, &patch);
  snprintf(version, sizeof version, "%d.%d.%d", (int)major, (int)minor, (int)patch);
  CHECK(strcmp(version, smla_version()) == 0);
  smla_version_numbers(NULL, NULL, NULL);
  CHECK(strcmp(smla_status_name(SMLA_OK), "SMLA_OK") == 0 && strcmp(smla_status_name(42), "unknown status") == 0);
  test_attention("ref");
  test_attention(NULL);
  test_values();
  test_shared_rows();
  test_partial();
  test_attention_errors();
  test_newer_caller();
  test_layer(NULL);
  test_layer("flashinfer");
  test_layer("sm120");
  test_layer_errors();
  if (failures == 0) printf("abi: all as expected\n");
  return failures == 0 ? 0 : 1;
}
