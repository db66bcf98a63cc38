/* Pools, requests and prefix caches from C: a request that begins with somebody else's blocks gives the same bits as
   one that computes all of its tokens. And what is reached through the same steps: layers that reuse a choice of
   entries, draft blocks whose tokens see each other. */
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

/* Two layers over one pool, and the outputs of a request in both. */
struct host {
  struct host_layer layers[2];
  smla_step* steps[2];
  smla_pool* pool;
};

static float outputs[3][2][PROMPT][HIDDEN];

static void run_request(struct host* h, smla_request* request, const int32_t* tokens, int64_t from,
                        smla_prefix_cache* prefixes, float (*output)[PROMPT][HIDDEN]) {
  static float hidden[PROMPT * HIDDEN];
  hidden_of(tokens, PROMPT, hidden);
  for (int64_t begin = from; begin < PROMPT;) {
    const int64_t end = begin + 200 < PROMPT ? begin + 200 : PROMPT;
    int32_t reserved = 0;
    CHECK(smla_request_reserve(request, begin, end, &reserved) == SMLA_OK && reserved == 1);
    for (int l = 0; l < 2; ++l) {
      build_step(h->steps[l], h->pool, l, h->layers[l].layer, request, begin, end, 0);
      forward(h->layers[l].layer, h->steps[l], h->pool, l, hidden + begin * HIDDEN, &output[l][begin][0], end - begin);
    }
    if (prefixes != NULL) CHECK(smla_prefix_keep(prefixes, request, begin, end, PROMPT) == SMLA_OK);
    CHECK(smla_request_slide(request, end) == SMLA_OK);
    begin = end;
  }
}

static smla_pool_info info_of(const smla_pool* pool) {
  smla_pool_info info = {.struct_size = sizeof info};
  CHECK(smla_pool_get_info(pool, &info) == SMLA_OK);
  return info;
}

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

static void test_prefixes(void) {
  struct host h;
  make_host(&h);
  CHECK(info_of(h.pool).num_blocks == BLOCKS && info_of(h.pool).num_groups == 3 && info_of(h.pool).block_bytes > 0);
  int32_t tokens[2][PROMPT]; /* alike up to token 550 */
  for (int t = 0; t < PROMPT; ++t) {
    tokens[0][t] = (t * 7919) % 1000;
    tokens[1][t] = t < 550 ? tokens[0][t] : 1000 + t;
  }
  smla_prefix_cache* prefixes = NULL;
  const smla_prefix_cache_options options = {.struct_size = sizeof options, .retention_interval = 256};
  CHECK(smla_prefix_cache_create(h.pool, &options, &prefixes) == SMLA_OK);
  smla_request* requests[3] = {NULL, NULL, NULL};
  for (int r = 0; r < 3; ++r) CHECK(smla_request_create(h.pool, &requests[r]) == SMLA_OK);

  /* Tokens may come in any pieces. */
  CHECK(smla_request_append_tokens(requests[0], tokens[0], 100) == SMLA_OK);
  CHECK(smla_request_append_tokens(requests[0], tokens[0] + 100, PROMPT - 100) == SMLA_OK);
  CHECK(smla_request_append_tokens(requests[1], tokens[1], PROMPT) == SMLA_OK);
  int64_t found = -1;
  CHECK(smla_prefix_adopt(prefixes, requests[0], PROMPT - 1, &found) == SMLA_OK && found == 0);
  run_request(&h, requests[0], tokens[0], 0, prefixes, outputs[0]);

  /* The second request begins with two blocks of 256 of the first, the third computes the same tokens alone. */
  CHECK(smla_prefix_find(prefixes, requests[1], PROMPT - 1, &found) == SMLA_OK && found == 512);
  CHECK(smla_prefix_find(prefixes, requests[1], 511, &found) == SMLA_OK && found == 256);
  CHECK(smla_prefix_adopt(prefixes, requests[1], PROMPT - 1, &found) == SMLA_OK && found == 512);
  int64_t missing = -1;
  CHECK(smla_request_missing(requests[1], 512, PROMPT, &missing) == SMLA_OK && missing == 1 + 2 + 22);
  CHECK_ERROR(smla_prefix_adopt(prefixes, requests[1], PROMPT - 1, &found), SMLA_INVALID_ARGUMENT, "holds some");
  memset(outputs[1], 0, sizeof outputs[1]);
  run_request(&h, requests[1], tokens[1], 512, prefixes, outputs[1]);
  run_request(&h, requests[2], tokens[1], 0, NULL, outputs[2]);
  for (int l = 0; l < 2; ++l) {
    const size_t part = sizeof(float) * HIDDEN * (PROMPT - 512);
    CHECK(memcmp(outputs[1][l][512], outputs[2][l][512], part) == 0);
    CHECK(memcmp(outputs[0][l][512], outputs[2][l][512], sizeof(float) * HIDDEN * (550 - 512)) == 0);
    CHECK(memcmp(outputs[0][l][560], outputs[2][l][560], sizeof(float) * HIDDEN) != 0);
  }
  smla_prefix_stats stats = {.struct_size = sizeof stats};
  CHECK(smla_prefix_get_stats(prefixes, &stats) == SMLA_OK);
  CHECK(stats.unit == 256 && stats.lookups == 2 && stats.hits == 1 && stats.hit_tokens == 512 && stats.tails == 2);

  /* Without its requests the cache alone holds blocks, and gives them up when they are wanted. */
  for (int r = 0; r < 3; ++r) smla_request_destroy(requests[r]);
  CHECK(info_of(h.pool).idle_blocks == stats.blocks && stats.blocks > 0);
  CHECK(info_of(h.pool).free_blocks == BLOCKS - stats.blocks);
  int32_t made = 0;
  CHECK(smla_prefix_make_room(prefixes, BLOCKS, &made) == SMLA_OK && made == 1);
  CHECK(info_of(h.pool).free_blocks == BLOCKS && info_of(h.pool).idle_blocks == 0);
  CHECK(smla_prefix_make_room(prefixes, BLOCKS + 1, &made) == SMLA_OK && made == 0);

  /* A pool that is destroyed first stays for the others. */
  smla_request* last = NULL;
  CHECK(smla_request_create(h.pool, &last) == SMLA_OK);
  smla_pool_destroy(h.pool);
  h.pool = NULL;
  int32_t reserved = 0;
  CHECK(smla_request_reserve(last, 0, 300, &reserved) == SMLA_OK && reserved == 1);
  CHECK(smla_request_clear(last) == SMLA_OK);
  CHECK(smla_request_reserve(last, 0, 100000, &reserved) == SMLA_OK && reserved == 0);
  smla_request_destroy(last);
  smla_prefix_cache_destroy(prefixes);
  free_host(&h);
}

static void test_errors(void) {
  struct host h;
  make_host(&h);
  smla_pool* other = NULL;
  const smla_layer* list[2] = {h.layers[0].layer, h.layers[1].layer};
  CHECK(smla_pool_create(list, 2, 10, NULL, &other) == SMLA_OK);
  smla_pool* none = h.pool;
  CHECK_ERROR(smla_pool_create(list, 0, 10, NULL, &none), SMLA_INVALID_ARGUMENT, "count");
  CHECK(none == NULL);
  CHECK_ERROR(smla_pool_create(list, 2, -1, NULL, &none), SMLA_INVALID_ARGUMENT, "blocks");
  CHECK_ERROR(smla_pool_create(NULL, 2, 10, NULL, &none), SMLA_INVALID_ARGUMENT, "layers");
  CHECK_ERROR(smla_pool_create(list, 2, 10, NULL, NULL), SMLA_INVALID_ARGUMENT, "pool");
  smla_cache cache = {.struct_size = sizeof cache};
  CHECK_ERROR(smla_pool_get_cache(h.pool, 2, 0, &cache, NULL), SMLA_INVALID_ARGUMENT, "layer 2");
  CHECK_ERROR(smla_pool_get_cache(h.pool, 0, 7, &cache, NULL), SMLA_INVALID_ARGUMENT, "role 7");
  CHECK_ERROR(smla_pool_get_cache(h.pool, 0, SMLA_CACHE_INDEX, &cache, NULL), SMLA_INVALID_ARGUMENT, "index");

  smla_request* request = NULL;
  smla_prefix_cache* prefixes = NULL;
  CHECK(smla_request_create(other, &request) == SMLA_OK);
  CHECK(smla_prefix_cache_create(h.pool, NULL, &prefixes) == SMLA_OK);
  int64_t number = 0;
  int32_t flag = 0;
  const int32_t* blocks = NULL;
  CHECK_ERROR(smla_prefix_find(prefixes, request, 10, &number), SMLA_INVALID_ARGUMENT, "another pool");
  CHECK_ERROR(smla_prefix_adopt(prefixes, request, 10, &number), SMLA_INVALID_ARGUMENT, "another pool");
  CHECK_ERROR(smla_prefix_keep(prefixes, request, 0, 10, 10), SMLA_INVALID_ARGUMENT, "another pool");
  CHECK_ERROR(smla_prefix_find(NULL, request, 10, &number), SMLA_INVALID_ARGUMENT, "cache");
  CHECK_ERROR(smla_request_reserve(request, 5, 4, &flag), SMLA_INVALID_ARGUMENT, "5 to 4");
  CHECK_ERROR(smla_request_slide(request, -1), SMLA_INVALID_ARGUMENT, "-1");
  CHECK_ERROR(smla_request_table(request, 3, &blocks, &number), SMLA_INVALID_ARGUMENT, "group");
  CHECK_ERROR(smla_request_append_tokens(request, NULL, 3), SMLA_INVALID_ARGUMENT, "tokens");
  CHECK_ERROR(smla_request_append_tokens(request, NULL, -3), SMLA_INVALID_ARGUMENT, "count");
  smla_prefix_cache* odd = prefixes;
  const smla_prefix_cache_options options = {.struct_size = sizeof options, .retention_interval = 100};
  CHECK_ERROR(smla_prefix_cache_create(h.pool, &options, &odd), SMLA_INVALID_ARGUMENT, "retention_interval");
  CHECK(odd == NULL);
  smla_request_destroy(request);
  smla_prefix_cache_destroy(prefixes);
  smla_request_destroy(NULL);
  smla_prefix_cache_destroy(NULL);
  smla_pool_destroy(other);
  free_host(&h);
}

/* A layer with the chooser's weights that takes the chooser's choice gives the chooser's bits. */
static void test_reused_choice(void) {
  struct host_layer chooser = make_layer(4, 0, 9);
  struct host_layer follower = make_layer(4, 1, 9);
  struct host_layer with_all = make_layer(4, 2, 9);
  struct host_layer window = make_layer(1, 0, 9);
  const smla_layer* list[2] = {chooser.layer, follower.layer};
  smla_layer_config read = {.struct_size = sizeof read};
  CHECK(smla_layer_get_config(follower.layer, &read) == SMLA_OK && read.reuses_topk == 1);
  smla_cache_need need = {.struct_size = sizeof need};
  CHECK(smla_layer_cache_need(follower.layer, SMLA_CACHE_INDEX, &need) == SMLA_OK && need.present == 0);
  smla_pool* pool = NULL;
  smla_step* step = NULL;
  smla_request* request = NULL;
  int32_t reserved = 0;
  CHECK(smla_pool_create(list, 2, BLOCKS, NULL, &pool) == SMLA_OK);
  CHECK_ERROR(smla_step_create(follower.layer, &step), SMLA_INVALID_ARGUMENT, "the one that chooses");
  CHECK(smla_step_create(chooser.layer, &step) == SMLA_OK);
  CHECK(smla_request_create(pool, &request) == SMLA_OK);
  CHECK(smla_request_reserve(request, 0, PROMPT, &reserved) == SMLA_OK && reserved == 1);
  static float hidden[PROMPT * HIDDEN];
  int32_t tokens[PROMPT];
  for (int t = 0; t < PROMPT; ++t) tokens[t] = t * t % 997;
  hidden_of(tokens, PROMPT, hidden);
  build_step(step, pool, 0, chooser.layer, request, 0, PROMPT, 0);
  forward(chooser.layer, step, pool, 0, hidden, &outputs[0][0][0][0], PROMPT);
  forward(follower.layer, step, pool, 1, hidden, &outputs[1][0][0][0], PROMPT);
  CHECK(memcmp(outputs[0][0], outputs[1][0], sizeof outputs[0][0]) == 0);
  forward(with_all.layer, step, pool, 1, hidden, &outputs[2][0][0][0], PROMPT);
  CHECK(memcmp(outputs[0][0], outputs[2][0], sizeof outputs[0][0]) == 0);
  /* Its entries are the chooser's: with others, that of an earlier step, the late tokens change. */
  build_step(step, pool, 0, chooser.layer, request, 0, PROMPT, 0);
  forward(follower.layer, step, pool, 1, hidden, &outputs[2][0][0][0], PROMPT);
  CHECK(memcmp(outputs[0][0][PROMPT - 1], outputs[2][0][PROMPT - 1], sizeof outputs[0][0][0]) != 0);
  smla_layer_plan* plan = NULL;
  CHECK_ERROR(smla_layer_plan_create(window.layer, step, &plan), SMLA_INVALID_ARGUMENT, "compress_ratio");
  smla_layer* bad = NULL;
  const smla_layer_config config = config_of(1, 1);
  const smla_layer_options options = options_of();
  CHECK_ERROR(smla_layer_create(&config, &options, NULL, NULL, 0, &bad), SMLA_INVALID_ARGUMENT, "reuses_topk");
  smla_request_destroy(request);
  smla_step_destroy(step);
  smla_pool_destroy(pool);
  free_layer(&chooser);
  free_layer(&follower);
  free_layer(&with_all);
  free_layer(&window);
}

/* Behind 40 tokens a block of 4 drafts: the last sees what it sees anyway, the first also those behind it. */
static void test_draft_block(void) {
  struct host h;
  make_host(&h);
  smla_request* request = NULL;
  int32_t reserved = 0;
  CHECK(smla_request_create(h.pool, &request) == SMLA_OK);
  CHECK(smla_request_reserve(request, 0, 44, &reserved) == SMLA_OK && reserved == 1);
  int32_t tokens[44];
  static float hidden[44 * HIDDEN];
  static float causal[44 * HIDDEN];
  static float block[4 * HIDDEN];
  for (int t = 0; t < 44; ++t) tokens[t] = 31 * t;
  hidden_of(tokens, 44, hidden);
  build_step(h.steps[0], h.pool, 0, h.layers[0].layer, request, 0, 44, 0);
  forward(h.layers[0].layer, h.steps[0], h.pool, 0, hidden, causal, 44);
  build_step(h.steps[0], h.pool, 0, h.layers[0].layer, request, 40, 44, 4);
  forward(h.layers[0].layer, h.steps[0], h.pool, 0, hidden + 40 * HIDDEN, block, 4);
  const size_t row = HIDDEN * sizeof(float);
  CHECK(memcmp(block + 3 * HIDDEN, causal + 43 * HIDDEN, row) == 0);
  for (int t = 0; t < 3; ++t) CHECK(memcmp(block + t * HIDDEN, causal + (40 + t) * HIDDEN, row) != 0);
  smla_tensor indices = {.struct_size = sizeof indices};
  CHECK(smla_step_get_tensor(h.steps[0], "window_lens", &indices) == SMLA_OK);
  for (int t = 0; t < 4; ++t) CHECK(((const int32_t*)indices.data)[t] == 44);
  smla_step_batch batch = {.struct_size = sizeof batch, .dspark_tokens = -1};
  CHECK_ERROR(smla_step_build(h.steps[0], &batch), SMLA_INVALID_ARGUMENT, "dspark_tokens");
  smla_request_destroy(request);
  free_host(&h);
}

/* The context of a layer of drafts: the rows of a forward, without one; what a block sees of them; what is kept. */
static void test_draft_context(void) {
  struct host h;
  draft_blocks = 1;
  make_host(&h);
  draft_blocks = 0;
  const smla_layer* layer = h.layers[0].layer;
  smla_cache_need need = {.struct_size = sizeof need};
  CHECK(smla_layer_cache_need(layer, SMLA_CACHE_WINDOW, &need) == SMLA_OK && need.window == 129);
  smla_request* requests[2] = {NULL, NULL};
  int32_t tokens[195];
  static float hidden[195 * HIDDEN];
  static float unused[195 * HIDDEN];
  static float blocks[2][4 * HIDDEN];
  for (int t = 0; t < 195; ++t) tokens[t] = 13 * t;
  hidden_of(tokens, 195, hidden);
  for (int r = 0; r < 2; ++r) {
    int32_t reserved = 0;
    CHECK(smla_request_create(h.pool, &requests[r]) == SMLA_OK);
    CHECK(smla_request_reserve(requests[r], 0, 195, &reserved) == SMLA_OK && reserved == 1);
    build_step(h.steps[0], h.pool, 0, layer, requests[r], 0, 191, 0);
    if (r == 0) {
      forward(layer, h.steps[0], h.pool, 0, hidden, unused, 191);
    } else {
      size_t bytes = 0;
      CHECK(smla_layer_context_workspace(layer, 191, &bytes) == SMLA_OK);
      void* workspace = aligned_memory(bytes);
      smla_cache cache = {.struct_size = sizeof cache};
      CHECK(smla_pool_get_cache(h.pool, 0, SMLA_CACHE_WINDOW, &cache, NULL) == SMLA_OK);
      smla_tensor slots = {.struct_size = sizeof slots};
      CHECK(smla_step_get_tensor(h.steps[0], "window_slots", &slots) == SMLA_OK);
      int64_t positions[191];
      for (int t = 0; t < 191; ++t) positions[t] = t;
      const smla_tensor in = tensor(hidden, SMLA_F32, 2, 191, HIDDEN, 0);
      const smla_tensor at = tensor(positions, SMLA_I64, 1, 191, 0, 0);
      CHECK(smla_layer_insert_context(layer, &in, &at, &slots, &cache, workspace, bytes, NULL) == SMLA_OK);
      CHECK_ERROR(smla_layer_insert_context(layer, &in, &at, &slots, &cache, workspace, bytes - 64, NULL),
                  SMLA_INVALID_ARGUMENT, "workspace");
      CHECK_ERROR(smla_layer_insert_context(layer, &in, &at, &at, NULL, workspace, bytes, NULL), SMLA_INVALID_ARGUMENT,
                  "window");
      CHECK_ERROR(smla_layer_insert_context(h.layers[1].layer, &in, &at, &slots, &cache, workspace, bytes, NULL),
                  SMLA_INVALID_ARGUMENT, "window-only");
      free(workspace);
    }
    /* The block sees position 63, which no later token does. */
    CHECK(smla_request_slide(requests[r], 191) == SMLA_OK);
    const int32_t* table = NULL;
    int64_t columns = 0;
    int32_t group = -1;
    smla_cache cache = {.struct_size = sizeof cache};
    CHECK(smla_pool_get_cache(h.pool, 0, SMLA_CACHE_WINDOW, &cache, &group) == SMLA_OK);
    CHECK(smla_request_table(requests[r], group, &table, &columns) == SMLA_OK && columns == 4 && table[0] >= 0);
    build_step(h.steps[0], h.pool, 0, layer, requests[r], 191, 195, 4);
    forward(layer, h.steps[0], h.pool, 0, hidden + 191 * HIDDEN, blocks[r], 4);
    CHECK(smla_request_slide(requests[r], 192) == SMLA_OK && table[0] < 0);
  }
  CHECK(memcmp(blocks[0], blocks[1], sizeof blocks[0]) == 0);
  for (int r = 0; r < 2; ++r) smla_request_destroy(requests[r]);
  free_host(&h);
}

/* A loop of draft steps: the step is advanced in place, by lengths that are given and by ones that are not. */
static void test_draft_loop(void) {
  struct host h;
  make_host(&h);
  const smla_layer* layer = h.layers[0].layer;
  smla_request* request = NULL;
  int32_t reserved = 0;
  CHECK(smla_request_create(h.pool, &request) == SMLA_OK);
  CHECK(smla_request_reserve(request, 0, 46, &reserved) == SMLA_OK && reserved == 1);
  int32_t tokens[46];
  static float hidden[46 * HIDDEN];
  static float whole[46 * HIDDEN];
  static float one[HIDDEN];
  for (int t = 0; t < 46; ++t) tokens[t] = 17 * t;
  hidden_of(tokens, 46, hidden);
  build_step(h.steps[0], h.pool, 0, layer, request, 0, 46, 0);
  forward(layer, h.steps[0], h.pool, 0, hidden, whole, 46);
  CHECK_ERROR(smla_step_advance(h.steps[0], NULL, 0, NULL), SMLA_INVALID_ARGUMENT, "one token for each request");
  build_step(h.steps[0], h.pool, 0, layer, request, 0, 40, 0);
  forward(layer, h.steps[0], h.pool, 0, hidden, whole, 40);
  build_step(h.steps[0], h.pool, 0, layer, request, 40, 41, 0);
  forward(layer, h.steps[0], h.pool, 0, hidden + 40 * HIDDEN, one, 1);
  CHECK(memcmp(one, whole + 40 * HIDDEN, sizeof one) == 0);
  CHECK_ERROR(smla_step_advance(h.steps[0], NULL, 0, NULL), SMLA_INVALID_ARGUMENT, "max_seq_len");
  for (int32_t t = 41; t < 46; ++t) {
    int32_t lens[1] = {t + 1};
    const smla_tensor given = tensor(lens, SMLA_I32, 1, 1, 0, 0);
    if (t == 41) {
      CHECK_ERROR(smla_step_advance(h.steps[0], &given, 41, NULL), SMLA_INVALID_ARGUMENT, "expected at least 42");
      CHECK(smla_step_advance(h.steps[0], &given, 46, NULL) == SMLA_OK);
    } else {
      CHECK(smla_step_advance(h.steps[0], NULL, 0, NULL) == SMLA_OK);
    }
    forward(layer, h.steps[0], h.pool, 0, hidden + t * HIDDEN, one, 1);
    CHECK(memcmp(one, whole + t * HIDDEN, sizeof one) == 0);
  }
  CHECK_ERROR(smla_step_advance(NULL, NULL, 0, NULL), SMLA_INVALID_ARGUMENT, "step");
  build_step(h.steps[1], h.pool, 1, h.layers[1].layer, request, 40, 41, 0);
  CHECK_ERROR(smla_step_advance(h.steps[1], NULL, 0, NULL), SMLA_INVALID_ARGUMENT, "window-only layers");
  smla_request_destroy(request);
  free_host(&h);
}

int main(void) {
  (void)to_bf16;
  test_prefixes();
  test_errors();
  test_reused_choice();
  test_draft_block();
  test_draft_context();
  test_draft_loop();
  printf(failures == 0 ? "pools, prefixes and steps from C: all checks passed\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
