/* Draft blocks from C, whose tokens see each other: their steps, the context of a layer of drafts, and a loop that
   advances a step in place. */
#include "host.h"

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
  test_draft_block();
  test_draft_context();
  test_draft_loop();
  printf(failures == 0 ? "drafts from C: all checks passed\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
