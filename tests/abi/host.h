/* What a host does from C: layers with random weights over one pool, steps, forwards. */
#pragma once

#include "abi.h"

enum {
  HIDDEN = 64,
  HEADS = 2,
  LORA = 32,
  DIM = 512,
  INDEX_HEADS = 2,
  INDEX_DIM = 128,
  TOPK = 16,
  PROMPT = 600,
  BLOCKS = 2000,
  MAX_TENSORS = 24
};

/* A layer with random weights of its own. */
struct host_layer {
  smla_layer* layer;
  float* memory[MAX_TENSORS];
  int count;
};

static smla_layer_config config_of(int64_t ratio, int32_t reuses) {
  smla_layer_config c = {.struct_size = sizeof c,
                         .hidden_size = HIDDEN,
                         .num_heads = HEADS,
                         .q_lora_rank = LORA,
                         .o_lora_rank = LORA,
                         .compress_ratio = ratio,
                         .index_n_heads = INDEX_HEADS,
                         .index_topk = TOPK,
                         .reuses_topk = reuses};
  return c;
}

static int32_t draft_blocks = 0; /* of the layers that are made */

static smla_layer_options options_of(void) {
  smla_layer_options o = {.struct_size = sizeof o,
                          .max_position = PROMPT,
                          .precision = SMLA_F32,
                          .deterministic = 1,
                          .implementation = "ref",
                          .draft_blocks = draft_blocks};
  return o;
}

/* `seed`: of the weights. One that reuses a choice (1) is made without an indexer's weights, with 2 with them. */
static struct host_layer make_layer(int64_t ratio, int32_t reuses, uint32_t seed) {
  static const struct {
    const char* name;
    int64_t rows, columns; /* columns 0: one dimension */
    float scale, middle;
    int compressed; /* layers of ratio 4 alone */
  } kWeights[] = {{"wq_a.weight", LORA, HIDDEN, 0.2F, 0, 0},
                  {"q_norm.weight", LORA, 0, 0.1F, 1, 0},
                  {"wq_b.weight", HEADS * DIM, LORA, 0.3F, 0, 0},
                  {"wkv.weight", DIM, HIDDEN, 0.2F, 0, 0},
                  {"kv_norm.weight", DIM, 0, 0.1F, 1, 0},
                  {"wo_a.weight", LORA, HEADS * DIM, 0.05F, 0, 0},
                  {"wo_b.weight", HIDDEN, LORA, 0.3F, 0, 0},
                  {"attn_sink", HEADS, 0, 1, 0, 0},
                  {"compressor.wkv.weight", 2 * DIM, HIDDEN, 0.2F, 0, 1},
                  {"compressor.wgate.weight", 2 * DIM, HIDDEN, 0.2F, 0, 1},
                  {"compressor.ape", 4, 2 * DIM, 0.2F, 0, 1},
                  {"compressor.norm.weight", DIM, 0, 0.1F, 1, 1},
                  {"indexer.compressor.wkv.weight", 2 * INDEX_DIM, HIDDEN, 0.2F, 0, 1},
                  {"indexer.compressor.wgate.weight", 2 * INDEX_DIM, HIDDEN, 0.2F, 0, 1},
                  {"indexer.compressor.ape", 4, 2 * INDEX_DIM, 0.2F, 0, 1},
                  {"indexer.compressor.norm.weight", INDEX_DIM, 0, 0.1F, 1, 1},
                  {"indexer.wq_b.weight", INDEX_HEADS * INDEX_DIM, LORA, 0.3F, 0, 1},
                  {"indexer.weights_proj.weight", INDEX_HEADS, HIDDEN, 0.2F, 0, 1}};
  struct host_layer made;
  memset(&made, 0, sizeof made);
  random_state = seed;
  const char* names[MAX_TENSORS];
  smla_tensor tensors[MAX_TENSORS];
  const smla_tensor* given[MAX_TENSORS];
  for (size_t w = 0; w < sizeof kWeights / sizeof kWeights[0]; ++w) {
    if (kWeights[w].compressed && ratio != 4) continue;
    if (reuses == 1 && strncmp(kWeights[w].name, "indexer.", 8) == 0) continue;
    const int64_t columns = kWeights[w].columns == 0 ? 1 : kWeights[w].columns;
    const int64_t n = kWeights[w].rows * columns;
    float* memory = malloc((size_t)n * sizeof *memory);
    if (memory == NULL) abort();
    for (int64_t i = 0; i < n; ++i) memory[i] = kWeights[w].middle + kWeights[w].scale * next_number();
    const int i = made.count++;
    made.memory[i] = memory;
    names[i] = kWeights[w].name;
    tensors[i] = tensor(memory, SMLA_F32, kWeights[w].columns == 0 ? 1 : 2, kWeights[w].rows, kWeights[w].columns, 0);
    given[i] = &tensors[i];
  }
  const smla_layer_config config = config_of(ratio, reuses > 0);
  const smla_layer_options options = options_of();
  CHECK(smla_layer_create(&config, &options, names, given, made.count, &made.layer) == SMLA_OK);
  return made;
}

static void free_layer(struct host_layer* l) {
  smla_layer_destroy(l->layer);
  for (int i = 0; i < l->count; ++i) free(l->memory[i]);
}

/* The tokens' hidden states: a function of the token alone. */
static void hidden_of(const int32_t* tokens, int64_t n, float* hidden) {
  for (int64_t t = 0; t < n; ++t) {
    random_state = 77U + 2654435761U * (uint32_t)tokens[t];
    for (int i = 0; i < HIDDEN; ++i) hidden[t * HIDDEN + i] = next_number();
  }
}

/* The step of positions [begin, end) of a request, for a layer of the pool. */
static void build_step(smla_step* step, smla_pool* pool, int64_t index, const smla_layer* layer,
                       const smla_request* request, int64_t begin, int64_t end, int64_t dspark) {
  int32_t starts[2] = {0, (int32_t)(end - begin)};
  int32_t lens[1] = {(int32_t)end};
  int64_t positions[PROMPT];
  for (int64_t p = begin; p < end; ++p) positions[p - begin] = p;
  smla_tensor tables[3];
  const smla_tensor* given[3] = {NULL, NULL, NULL};
  for (int32_t role = 0; role < SMLA_NUM_CACHES; ++role) {
    smla_cache_need need = {.struct_size = sizeof need};
    CHECK(smla_layer_cache_need(layer, role, &need) == SMLA_OK);
    if (!need.present) continue;
    smla_cache cache = {.struct_size = sizeof cache};
    int32_t group = -1;
    const int32_t* blocks = NULL;
    int64_t count = 0;
    CHECK(smla_pool_get_cache(pool, index, role, &cache, &group) == SMLA_OK);
    CHECK(smla_request_table(request, group, &blocks, &count) == SMLA_OK);
    tables[need.group] = tensor((void*)blocks, SMLA_I32, 2, 1, count, 0);
    given[need.group] = &tables[need.group];
  }
  const smla_tensor t_starts = tensor(starts, SMLA_I32, 1, 2, 0, 0);
  const smla_tensor t_lens = tensor(lens, SMLA_I32, 1, 1, 0, 0);
  const smla_tensor t_positions = tensor(positions, SMLA_I64, 1, end - begin, 0, 0);
  const smla_step_batch batch = {.struct_size = sizeof batch,
                                 .query_start_loc = &t_starts,
                                 .seq_lens = &t_lens,
                                 .positions = &t_positions,
                                 .block_tables = given,
                                 .num_block_tables = smla_layer_num_groups(layer),
                                 .decode_threshold = dspark > 0 ? end - begin : 0,
                                 .dspark_tokens = dspark};
  CHECK(smla_step_build(step, &batch) == SMLA_OK);
}

static void forward(const smla_layer* layer, const smla_step* step, smla_pool* pool, int64_t index, float* hidden,
                    float* output, int64_t tokens) {
  smla_cache memory[SMLA_NUM_CACHES];
  smla_layer_caches caches = {.struct_size = sizeof caches};
  for (int32_t role = 0; role < SMLA_NUM_CACHES; ++role) {
    smla_cache_need need = {.struct_size = sizeof need};
    CHECK(smla_layer_cache_need(layer, role, &need) == SMLA_OK);
    if (!need.present) continue;
    memset(&memory[role], 0, sizeof memory[role]);
    memory[role].struct_size = sizeof memory[role];
    CHECK(smla_pool_get_cache(pool, index, role, &memory[role], NULL) == SMLA_OK);
    caches.cache[role] = &memory[role];
  }
  smla_layer_plan* plan = NULL;
  size_t bytes = 0;
  CHECK(smla_layer_plan_create(layer, step, &plan) == SMLA_OK);
  CHECK(smla_layer_plan_workspace(plan, &bytes) == SMLA_OK);
  void* workspace = aligned_memory(bytes);
  const smla_tensor in = tensor(hidden, SMLA_F32, 2, tokens, HIDDEN, 0);
  const smla_tensor out = tensor(output, SMLA_F32, 2, tokens, HIDDEN, 0);
  CHECK(smla_layer_forward(layer, plan, step, &caches, &in, &out, workspace, bytes, NULL) == SMLA_OK);
  free(workspace);
  smla_layer_plan_destroy(plan);
}

/* Two layers over one pool. */
struct host {
  struct host_layer layers[2];
  smla_step* steps[2];
  smla_pool* pool;
};

static void make_host(struct host* h) {
  const int64_t ratios[2] = {1, 4};
  const smla_layer* list[2];
  for (int l = 0; l < 2; ++l) {
    h->layers[l] = make_layer(ratios[l], 0, 5U + (uint32_t)l);
    CHECK(smla_step_create(h->layers[l].layer, &h->steps[l]) == SMLA_OK);
    list[l] = h->layers[l].layer;
  }
  CHECK(smla_pool_create(list, 2, BLOCKS, NULL, &h->pool) == SMLA_OK);
}

static void free_host(struct host* h) {
  smla_pool_destroy(h->pool);
  for (int l = 0; l < 2; ++l) {
    smla_step_destroy(h->steps[l]);
    free_layer(&h->layers[l]);
  }
}
