/* What the C tests of the interface share: checks that print and count, descriptors, exact numbers. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sparsemla/c_api.h"

static int failures = 0;

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) {                                      \
      ++failures;                                            \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      printf("  last error: %s\n", smla_last_error());       \
    }                                                        \
  } while (0)

/* The status, and a word that the text must have. */
#define CHECK_ERROR(call, wanted, word)                                                          \
  do {                                                                                           \
    const smla_status got_ = (call);                                                             \
    if (got_ != (wanted) || strstr(smla_last_error(), (word)) == NULL) {                         \
      ++failures;                                                                                \
      printf("%s:%d: %s\n  got %s \"%s\", expected %s with \"%s\"\n", __FILE__, __LINE__, #call, \
             smla_status_name(got_), smla_last_error(), smla_status_name(wanted), (word));       \
    }                                                                                            \
  } while (0)

static smla_tensor tensor(void* data, smla_dtype dtype, int32_t rank, int64_t a, int64_t b, int64_t c) {
  smla_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  t.shape[0] = a;
  t.shape[1] = b;
  t.shape[2] = c;
  return t;
}

static void* aligned_memory(size_t bytes) {
  void* p = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (p == NULL) abort();
  memset(p, 0xFF, (bytes + 64) / 64 * 64);
  return p;
}

/* Numbers in [-1, 1) that are exact in bf16: multiples of 1/64. */
static uint32_t random_state = 1;
static float next_number(void) {
  random_state = random_state * 1664525U + 1013904223U;
  return (float)((int)(random_state >> 25) - 64) / 64.0F;
}
static inline uint16_t to_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return (uint16_t)((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
