/* Pools, requests and prefix caches from C: a request that begins with somebody else's blocks gives the same bits as
   one that computes all of its tokens. And layers that reuse a choice of entries. */
#include "host.h"

/* Of a request, in both layers. */
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

int main(void) {
  test_prefixes();
  test_errors();
  test_reused_choice();
  printf(failures == 0 ? "pools and prefixes from C: all checks passed\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
