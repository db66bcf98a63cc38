/* A host in C: one query over a paged bf16 cache of its own, and what a mistake looks like. */
#include <sparsemla/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kDim = 512, kRows = 8, kBlock = 4, kKeys = 3 };

static uint16_t cache_rows[kRows * kDim]; /* two blocks of four rows */
static uint16_t query[kDim];
static float output[kDim];
static float lse[1];

/* bfloat16 is the upper half of a float. */
static uint16_t bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static smla_tensor tensor(void* data, smla_dtype dtype, int32_t rank, int64_t a, int64_t b,
                          int64_t c) {
  smla_tensor t = {
      .struct_size = sizeof t, .data = data, .dtype = dtype, .rank = rank, .shape = {a, b, c}};
  return t;
}

int main(void) {
  /* Three keys along the first three dims, in rows 1, 6 and 7; the query likes the second best. */
  int32_t slots[kKeys] = {1, 6, 7};
  for (int i = 0; i < kKeys; ++i) cache_rows[slots[i] * kDim + i] = bf16(1.0F);
  query[0] = bf16(16.0F);
  query[1] = bf16(32.0F);

  const smla_tensor q = tensor(query, SMLA_BF16, 3, 1, 1, kDim);
  smla_tensor indices = tensor(slots, SMLA_I32, 2, 1, kKeys, 0);
  const smla_tensor o = tensor(output, SMLA_F32, 3, 1, 1, kDim);
  const smla_tensor l = tensor(lse, SMLA_F32, 2, 1, 1, 0);
  const smla_cache cache = {.struct_size = sizeof cache,
                            .format = "bf16",
                            .base = cache_rows,
                            .num_blocks = kRows / kBlock,
                            .block_size = kBlock};
  const smla_attention_scope scope = {
      .struct_size = sizeof scope, .cache = &cache, .indices = &indices};
  const smla_sparse_attention_args args = {
      .struct_size = sizeof args, .q = &q, .scope = &scope, .o = &o, .lse = &l};

  size_t bytes = 0;
  smla_status status = smla_sparse_attention_workspace(&args, &bytes, NULL);
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (status == SMLA_OK) status = smla_sparse_attention(&args, workspace, bytes);
  if (status != SMLA_OK) {
    fprintf(stderr, "%s: %s\n", smla_status_name(status), smla_last_error());
    return 1;
  }
  printf("o   = %.2f %.2f %.2f %.2f ...\n", output[0], output[1], output[2], output[3]);
  printf("lse = %.2f\n", lse[0]);

  indices.dtype = SMLA_F32;
  status = smla_sparse_attention(&args, workspace, bytes);
  printf("%s\n  %s\n", smla_status_name(status), smla_last_error());
  free(workspace);
  return 0;
}
