/* Versions, and sparse attention from C alone, every expected number computed here in double. Prints each failure; exit
 * 1 when there is one. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

enum { DIM = 512, ROPE = 64 };

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
  if (failures == 0) printf("attention: all as expected\n");
  return failures == 0 ? 0 : 1;
}
