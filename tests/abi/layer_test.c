/* A window-only layer in float32 from C alone, every expected number computed here in double. Prints each failure; exit
 * 1 when there is one. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

enum { DIM = 512, ROPE = 64, H = 2 };

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
  test_layer(NULL);
  test_layer("flashinfer");
  test_layer("sm120");
  test_layer_errors();
  if (failures == 0) printf("layer: all as expected\n");
  return failures == 0 ? 0 : 1;
}
