/* Ops by name from C alone: every op lists its members, a call by name gives the bits of the typed call, and a wrong
 * name is an error that says so. Prints each failure; exit 1 when there is one. */
#include "abi.h"

enum { T = 3, H = 2, DIM = 512, W = 5, BLOCKS = 3, BLOCK = 4 };

static smla_scalar integer(const char* name, int64_t value) {
  const smla_scalar s = {sizeof s, name, value, 0, NULL};
  return s;
}
static smla_scalar number(const char* name, double value) {
  const smla_scalar s = {sizeof s, name, 0, value, NULL};
  return s;
}
static smla_scalar text(const char* name, const char* value) {
  const smla_scalar s = {sizeof s, name, 0, 0, value};
  return s;
}
static smla_argument argument(const char* name, const smla_tensor* t) {
  const smla_argument a = {sizeof a, name, t, NULL};
  return a;
}
static smla_argument cache_argument(const char* name, const smla_cache* c) {
  const smla_argument a = {sizeof a, name, NULL, c};
  return a;
}

static void test_members(void) {
  int seen = 0;
  CHECK(smla_num_ops() > 30);
  CHECK(smla_op_name(-1) == NULL && smla_op_name(smla_num_ops()) == NULL);
  for (int64_t i = 0; i < smla_num_ops(); ++i) {
    const char* op = smla_op_name(i);
    int scalars = 0;
    int tensors = 0;
    CHECK(op != NULL && strlen(op) > 0);
    for (int64_t m = 0;; ++m) {
      smla_op_member member;
      member.struct_size = sizeof member;
      CHECK(smla_op_get_member(op, m, &member) == SMLA_OK);
      if (member.kind == SMLA_MEMBER_NONE) {
        CHECK(member.name == NULL);
        break;
      }
      CHECK(member.name != NULL && member.kind >= SMLA_MEMBER_INTEGER && member.kind <= SMLA_MEMBER_CACHE);
      if (member.kind >= SMLA_MEMBER_INPUT) ++tensors;
      if (member.kind < SMLA_MEMBER_INPUT) {
        ++scalars;
        CHECK(tensors == 0); /* scalars come first */
      }
      if (strcmp(op, "insert_rows") == 0) {
        seen += strcmp(member.name, "tokens") == 0 && member.kind == SMLA_MEMBER_INTEGER;
        seen += strcmp(member.name, "in") == 0 && member.kind == SMLA_MEMBER_DTYPE;
        seen += strcmp(member.name, "format") == 0 && member.kind == SMLA_MEMBER_FORMAT;
        seen += strcmp(member.name, "clamp") == 0 && member.kind == SMLA_MEMBER_RULE;
        seen += strcmp(member.name, "rows") == 0 && member.kind == SMLA_MEMBER_INPUT;
        seen += strcmp(member.name, "cache") == 0 && member.kind == SMLA_MEMBER_CACHE;
      }
      if (strcmp(op, "sparse_attention") == 0) {
        seen += strcmp(member.name, "partial") == 0 && member.kind == SMLA_MEMBER_FLAG;
        seen += strcmp(member.name, "scale") == 0 && member.kind == SMLA_MEMBER_NUMBER;
        seen += strcmp(member.name, "o") == 0 && member.kind == SMLA_MEMBER_OUTPUT;
        seen += strcmp(member.name, "scopes[1].indices") == 0 && member.kind == SMLA_MEMBER_INPUT;
      }
    }
    CHECK(scalars > 0 && tensors > 0);
  }
  CHECK(seen == 10);
  CHECK_ERROR(smla_op_get_member("rms_norms", 0, NULL), SMLA_INVALID_ARGUMENT, "op: got \"rms_norms\"");
  CHECK_ERROR(smla_op_get_member("rms_norm", -1, NULL), SMLA_INVALID_ARGUMENT, "index: got -1");
  CHECK_ERROR(smla_op_get_member("rms_norm", 0, NULL), SMLA_INVALID_ARGUMENT, "smla_op_member: got NULL");
}

static unsigned char cache_bytes[BLOCKS * BLOCK * 2 * DIM];
static uint16_t q[T][H][DIM];
static const int32_t indices[T][W] = {{0, 5, 11, -1, 7}, {12, -3, 9, 1, 2}, {4, 4, 6, 9, 10}};
static const int32_t lens[T] = {5, 3, 4};
static const float sink[H] = {0.25F, -1.5F};
static float typed_o[T][H][DIM], typed_lse[T][H], named_o[T][H][DIM], named_lse[T][H];

static void test_attention_by_name(void) {
  for (size_t i = 0; i < sizeof cache_bytes / 2; ++i) {
    const uint16_t bits = to_bf16(next_number());
    memcpy(cache_bytes + 2 * i, &bits, 2);
  }
  for (int i = 0; i < T * H * DIM; ++i) (&q[0][0][0])[i] = to_bf16(next_number());
  const smla_tensor t_q = tensor(q, SMLA_BF16, 3, T, H, DIM);
  const smla_tensor t_indices = tensor((void*)indices, SMLA_I32, 2, T, W, 0);
  const smla_tensor t_lens = tensor((void*)lens, SMLA_I32, 1, T, 0, 0);
  const smla_tensor t_sink = tensor((void*)sink, SMLA_F32, 1, H, 0, 0);
  smla_tensor t_o = tensor(typed_o, SMLA_F32, 3, T, H, DIM);
  smla_tensor t_lse = tensor(typed_lse, SMLA_F32, 2, T, H, 0);
  smla_cache cache;
  memset(&cache, 0, sizeof cache);
  cache.struct_size = sizeof cache;
  cache.format = "bf16";
  cache.base = cache_bytes;
  cache.num_blocks = BLOCKS;
  cache.block_size = BLOCK;
  smla_attention_scope scope = {sizeof scope, &cache, &t_indices, &t_lens, NULL};
  smla_sparse_attention_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = &t_q;
  args.scope = &scope;
  args.sink = &t_sink;
  args.o = &t_o;
  args.lse = &t_lse;
  size_t bytes = 0;
  const char* chosen = NULL;
  CHECK(smla_sparse_attention_workspace(&args, &bytes, &chosen) == SMLA_OK);
  void* workspace = aligned_memory(bytes);
  CHECK(smla_sparse_attention(&args, workspace, bytes) == SMLA_OK);

  const smla_scalar problem[] = {integer("tokens", T),
                                 integer("heads", H),
                                 integer("dim", DIM),
                                 integer("q", SMLA_BF16),
                                 integer("o", SMLA_F32),
                                 integer("scopes", 1),
                                 integer("partial", 0),
                                 number("scale", 0),
                                 text("scopes[0].format", "bf16"),
                                 integer("scopes[0].block_size", BLOCK),
                                 integer("scopes[0].width", W)};
  enum { SCALARS = sizeof problem / sizeof problem[0] };
  smla_plan* plan = NULL;
  CHECK(smla_plan_create("sparse_attention", problem, SCALARS, NULL, &plan) == SMLA_OK);
  size_t named_bytes = 0;
  const char* named_chosen = NULL;
  CHECK(smla_plan_workspace(plan, &named_bytes, &named_chosen) == SMLA_OK);
  CHECK(named_bytes == bytes && strcmp(chosen, named_chosen) == 0);
  CHECK(smla_plan_workspace(plan, NULL, NULL) == SMLA_OK);
  t_o.data = named_o;
  t_lse.data = named_lse;
  smla_argument arguments[] = {argument("q", &t_q),
                               argument("o", &t_o),
                               argument("lse", &t_lse),
                               argument("sink", &t_sink),
                               cache_argument("scopes[0].cache", &cache),
                               argument("scopes[0].indices", &t_indices),
                               argument("scopes[0].lens", &t_lens),
                               argument("output_epilogue.positions", NULL)};
  enum { ARGUMENTS = sizeof arguments / sizeof arguments[0] };
  for (int again = 0; again < 2; ++again) {
    memset(named_o, 0xFF, sizeof named_o);
    CHECK(smla_plan_run(plan, arguments, ARGUMENTS, workspace, bytes, NULL) == SMLA_OK);
    CHECK(memcmp(typed_o, named_o, sizeof named_o) == 0 && memcmp(typed_lse, named_lse, sizeof named_lse) == 0);
  }

#define RUN_ERROR(change, count, word)                                                                         \
  do {                                                                                                         \
    const smla_argument kept[2] = {arguments[0], arguments[4]};                                                \
    change;                                                                                                    \
    CHECK_ERROR(smla_plan_run(plan, arguments, count, workspace, bytes, NULL), SMLA_INVALID_ARGUMENT, (word)); \
    arguments[0] = kept[0];                                                                                    \
    arguments[4] = kept[1];                                                                                    \
  } while (0)
  RUN_ERROR(arguments[0].name = "queries", ARGUMENTS, "sparse_attention: queries: got a member of that name");
  RUN_ERROR(arguments[0].name = "lens", ARGUMENTS, "scopes[0].lens");
  RUN_ERROR(arguments[0].name = "o", ARGUMENTS, "sparse_attention: o: got it twice");
  RUN_ERROR(arguments[0].name = NULL, ARGUMENTS, "sparse_attention: arguments: got one without a name");
  RUN_ERROR(arguments[0].tensor = NULL, ARGUMENTS, "sparse_attention: q: got no tensor");
  RUN_ERROR(arguments[0].cache = &cache, ARGUMENTS, "sparse_attention: q: got a cache");
  RUN_ERROR(arguments[0].tensor = &t_lens, ARGUMENTS, "sparse_attention: q: got");
  RUN_ERROR(arguments[4].tensor = &t_lens, ARGUMENTS, "sparse_attention: scopes[0].cache: got a tensor");
  RUN_ERROR(arguments[4].cache = NULL, ARGUMENTS, "sparse_attention: scope");
  RUN_ERROR(arguments[0].struct_size = 8, ARGUMENTS, "struct_size 8");
  RUN_ERROR(arguments[4].struct_size = sizeof(smla_argument) + 8, ARGUMENTS, "different struct_size");
  RUN_ERROR((void)0, -1, "sparse_attention: arguments: got -1");
  RUN_ERROR((void)0, 65, "sparse_attention: arguments: got 65");
  RUN_ERROR((void)0, 0, "sparse_attention: q: got no tensor");
#undef RUN_ERROR
  smla_tensor bad = t_q;
  bad.rank = 7;
  arguments[0].tensor = &bad;
  CHECK_ERROR(smla_plan_run(plan, arguments, ARGUMENTS, workspace, bytes, NULL), SMLA_INVALID_ARGUMENT,
              "sparse_attention: q: got rank 7");
  arguments[0].tensor = &t_q;
  CHECK_ERROR(smla_plan_run(plan, NULL, 1, workspace, bytes, NULL), SMLA_INVALID_ARGUMENT, "arguments: got NULL");
  CHECK_ERROR(smla_plan_run(NULL, arguments, ARGUMENTS, workspace, bytes, NULL), SMLA_INVALID_ARGUMENT, "plan");
  CHECK_ERROR(smla_plan_workspace(NULL, NULL, NULL), SMLA_INVALID_ARGUMENT, "plan");
  if (bytes > 0) {
    CHECK_ERROR(smla_plan_run(plan, arguments, ARGUMENTS, workspace, bytes - 1, NULL), SMLA_INVALID_ARGUMENT,
                "sparse_attention: workspace");
  }
  CHECK(smla_plan_run(plan, arguments, ARGUMENTS, workspace, bytes, NULL) == SMLA_OK);
  smla_plan_destroy(plan);
  smla_plan_destroy(NULL);
  free(workspace);
}

static void test_problem_errors(void) {
  smla_plan* plan = NULL;
  smla_plan_options options;
  smla_scalar problem[] = {integer("tokens", 4), integer("in", SMLA_BF16), text("format", "bf16"),
                           text("clamp", "scale")};
  enum { SCALARS = sizeof problem / sizeof problem[0] };
#define CREATE_ERROR(change, word)                                                                                  \
  do {                                                                                                              \
    smla_scalar kept[SCALARS];                                                                                      \
    memcpy(kept, problem, sizeof kept);                                                                             \
    memset(&options, 0, sizeof options);                                                                            \
    options.struct_size = sizeof options;                                                                           \
    change;                                                                                                         \
    CHECK_ERROR(smla_plan_create("insert_rows", problem, SCALARS, &options, &plan), SMLA_INVALID_ARGUMENT, (word)); \
    CHECK(plan == NULL);                                                                                            \
    memcpy(problem, kept, sizeof kept);                                                                             \
  } while (0)
  CREATE_ERROR(problem[0].name = "token", "insert_rows: token: got a member of that name, expected one of tokens, in");
  CREATE_ERROR(problem[0].name = "in", "insert_rows: in: got it twice");
  CREATE_ERROR(problem[0].name = NULL, "insert_rows: scalars: got one without a name");
  CREATE_ERROR(problem[0].integer = -1, "insert_rows: tokens: got -1");
  CREATE_ERROR(problem[0].number = 2, "insert_rows: tokens: got integer 4, number 2");
  CREATE_ERROR(problem[0].text = "4", "insert_rows: tokens: got integer 4, text \"4\"");
  CREATE_ERROR(problem[1].integer = 0, "insert_rows: in: got dtype 0");
  CREATE_ERROR(problem[1].integer = INT64_MAX, "insert_rows: in: got dtype");
  CREATE_ERROR(problem[2].text = "bf17", "insert_rows: format: got \"bf17\", expected one of fp8_ds_mla");
  CREATE_ERROR(problem[2].text = NULL, "insert_rows: format: got no text");
  CREATE_ERROR(problem[2].integer = 3, "insert_rows: format: got integer 3");
  CREATE_ERROR(problem[3].text = "max", "insert_rows: clamp: got \"max\", expected amax or scale");
  CREATE_ERROR(problem[1].struct_size = sizeof(smla_scalar) + 8, "insert_rows: scalars: got structs of different");
  CREATE_ERROR(options.struct_size = 4, "smla_plan_options: got struct_size 4");
  CREATE_ERROR(options.implementation = "gpu", "insert_rows: got implementation \"gpu\"");
  CREATE_ERROR(options.device = 9, "device: got 9");
  CREATE_ERROR(options.deterministic = 2, "deterministic: got 2");
  CREATE_ERROR(options.threads = -1, "threads: got -1");
  CREATE_ERROR(options.reserved = 1, "reserved");
#undef CREATE_ERROR
  const smla_scalar wide = integer("dim", INT64_C(1) << 40);
  const smla_scalar flag = integer("partial", 2);
  const smla_scalar scale = integer("scale", 2);
  CHECK_ERROR(smla_plan_create("sparse_attention", &wide, 1, NULL, &plan), SMLA_INVALID_ARGUMENT, "32 bits");
  CHECK_ERROR(smla_plan_create("sparse_attention", &flag, 1, NULL, &plan), SMLA_INVALID_ARGUMENT, "partial: got 2");
  CHECK_ERROR(smla_plan_create("sparse_attention", &scale, 1, NULL, &plan), SMLA_INVALID_ARGUMENT,
              "scale: got integer 2, expected a value in `number` alone");
  CHECK_ERROR(smla_plan_create("insert_row", problem, SCALARS, NULL, &plan), SMLA_INVALID_ARGUMENT,
              "op: got \"insert_row\", expected one of projection, ");
  CHECK_ERROR(smla_plan_create(NULL, problem, SCALARS, NULL, &plan), SMLA_INVALID_ARGUMENT, "op: got NULL");
  CHECK_ERROR(smla_plan_create("insert_rows", problem, SCALARS, NULL, NULL), SMLA_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_ERROR(smla_plan_create("insert_rows", NULL, 1, NULL, &plan), SMLA_INVALID_ARGUMENT, "scalars: got NULL");
  CHECK(smla_plan_create("insert_rows", problem, SCALARS, NULL, &plan) == SMLA_OK && plan != NULL);
  smla_plan_destroy(plan);
}

/* An array of a caller whose structs are larger: a newer header. */
static void test_newer_structs(void) {
  struct {
    smla_scalar known;
    uint64_t newer;
  } problem[2];
  smla_plan* plan = NULL;
  memset(problem, 0, sizeof problem);
  problem[0].known = integer("tokens", 4);
  problem[1].known = text("format", "bf16");
  problem[0].known.struct_size = problem[1].known.struct_size = sizeof problem[0];
  CHECK(smla_plan_create("insert_rows", &problem[0].known, 2, NULL, &plan) == SMLA_OK);
  smla_plan_destroy(plan);
  problem[1].newer = 1;
  CHECK_ERROR(smla_plan_create("insert_rows", &problem[0].known, 2, NULL, &plan), SMLA_INVALID_ARGUMENT, "newer");
}

int main(void) {
  test_members();
  test_attention_by_name();
  test_problem_errors();
  test_newer_structs();
  if (failures == 0) printf("plans: all as expected\n");
  return failures == 0 ? 0 : 1;
}
