/* Longer than 200 lines: the whole of the C interface stands in this one header. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sparsemla/export.h"

/// @file
/// SparseMLA from C, and from every language that can call C. C11, no other header of the library is needed.
///
/// Rules that hold for all of it:
/// - Functions return a status; `SMLA_OK` is 0. After another status `smla_last_error()` has the text: what was wrong,
/// what was got, what was expected.
///   No C++ exception leaves the library. Nothing is printed, nothing exits.
/// - Every struct starts with `struct_size`, which the caller sets to `sizeof` of the struct as it knows it. In every
/// other field 0 (NULL) means the
///   default or "none", so a struct that is zeroed and then filled stays right when a later version adds fields at its
///   end. A struct that is larger than the library's own is taken when its unknown tail is zero.
/// - Memory that a descriptor points to belongs to the caller. A call reads it and forgets it, but for the weights of a
/// layer, which must stay.
/// - A handle may be used by several threads at once as long as it is `const` in all of them.

#ifdef __cplusplus
extern "C" {
#endif

/// What became of a call: one of the SMLA_* status codes.
typedef int32_t smla_status;
/// Status codes.
enum {
  SMLA_OK = 0,                ///< done
  SMLA_INVALID_ARGUMENT = 1,  ///< a wrong shape, dtype, stride, range, name, size of a struct, or a NULL
  SMLA_UNSUPPORTED = 2,       ///< valid, but no implementation on this machine accepts it
  SMLA_IO_ERROR = 3,          ///< a file could not be read, or its contents are damaged
  SMLA_CUDA_ERROR = 4,        ///< a CUDA call failed
  SMLA_OUT_OF_MEMORY = 5,     ///< host memory
  SMLA_INTERNAL_ERROR = 6     ///< anything else: a defect of the library
};

/// Element type of a tensor: one of the SMLA_* dtypes.
typedef int32_t smla_dtype;
/// Dtypes. 0 is none of them, so that a forgotten field is noticed.
enum {
  SMLA_F32 = 1,
  SMLA_F64 = 2,
  SMLA_BF16 = 3,  ///< bfloat16 as its 16 bits
  SMLA_E4M3 = 4,  ///< OCP FP8 E4M3FN as its byte
  SMLA_U8 = 5,
  SMLA_I32 = 6,
  SMLA_I64 = 7,
  SMLA_BOOL = 8  ///< one byte, 0 or 1
};

/// The library's version, "major.minor.patch". Never NULL.
SMLA_API const char* smla_version(void);
/// The same as numbers; any of the pointers may be NULL. Releases with the same major number (before 1.0: the same
/// major and minor) are compatible.
SMLA_API void smla_version_numbers(int32_t* major, int32_t* minor, int32_t* patch);
/// The text of this thread's last call that returns a status: empty when it succeeded. Valid until this thread's next
/// such call. Never NULL.
SMLA_API const char* smla_last_error(void);
/// "SMLA_OK", "SMLA_INVALID_ARGUMENT", ...; "unknown status" for another number. Never NULL.
SMLA_API const char* smla_status_name(smla_status status);

/// Where memory lies and work runs: one of SMLA_CPU and SMLA_CUDA.
typedef int32_t smla_device;
/// Devices. With SMLA_CUDA the `data`, `base` and workspace pointers of a call are device memory of the current GPU,
/// work is queued on the `stream` (a cudaStream_t; NULL: the default stream) and the call does not wait for it, nor
/// does it allocate device memory unless it says so.
enum { SMLA_CPU = 0, SMLA_CUDA = 1 };

/// A tensor in the caller's memory. Absent tensors are NULL pointers to this struct.
typedef struct smla_tensor {
  uint64_t struct_size;  ///< sizeof(smla_tensor)
  void* data;            ///< first element, aligned to its size; inputs are not written
  smla_dtype dtype;      ///< of its elements
  int32_t rank;          ///< 1 to 4
  int64_t shape[4];      ///< the first `rank` count
  int64_t strides[4];    ///< in elements, 0 or more; the last dimension must be contiguous (1). All zero: contiguous
} smla_tensor;

/// A paged cache in the caller's memory. Row of slot s: block s / block_size at `base + (s / block_size) *
/// block_stride_bytes`, row s % block_size in it.
typedef struct smla_cache {
  uint64_t struct_size;  ///< sizeof(smla_cache)
  const char*
      format;  ///< name of the rows: "fp8_ds_mla", "bf16", "fp8_per_tensor", "f32", "index_fp8", ... (docs/formats.md)
  void* base;  ///< first block
  int64_t num_blocks;          ///< blocks that may be read and written
  int64_t block_size;          ///< rows in a block
  int64_t block_stride_bytes;  ///< from one block to the next; 0: blocks follow each other without a gap
  float
      kv_scale;  ///< fp8_per_tensor rows: number = e4m3 * kv_scale; 0 means 1 (for a layer's cache: the layer's scale)
  int32_t reserved;  ///< 0
} smla_cache;

/// Bytes of a block of `block_size` rows of a format: `*block_bytes` without padding, `*page_bytes` rounded up to the
/// format's page alignment. Either pointer may be NULL.
SMLA_API smla_status smla_cache_block_bytes(const char* format, int64_t block_size, int64_t* block_bytes,
                                            int64_t* page_bytes);

/* ---- sparse attention ---- */

/// A cache and the rows of it that each query attends to.
typedef struct smla_attention_scope {
  uint64_t struct_size;        ///< sizeof(smla_attention_scope)
  const smla_cache* cache;     ///< the rows; they are keys and values at once
  const smla_tensor* indices;  ///< [T / tokens_per_list, W] I32 slots, rows may be strided; slots outside the cache
                               ///< (-1) are skipped
  const smla_tensor* lens;     ///< [T] I32 columns of each row that count; NULL: all W
  const smla_tensor* starts;   ///< with tokens_per_list above 1: [T] I32 a query's first column; NULL: 0
} smla_attention_scope;

/// Attention of T queries with H heads over one or two scopes, one softmax over both:
///   s_j = scale * <q_h, k_j>,  lse = ln sum_j exp(s_j),  o = sum_j exp(s_j - lse) k_j / (1 + exp(sink_h - lse))
/// lse is natural and without the sink. A query with no row gives o = 0 and lse = +inf. `partial`: o is F32, the sink
/// is left out, and a query with no row gives o = 0 and lse = -inf; smla_merge_partials makes the final result of such
/// slices.
typedef struct smla_sparse_attention_args {
  uint64_t struct_size;                ///< sizeof(smla_sparse_attention_args)
  const smla_tensor* q;                ///< [T, >= H, dim] BF16, E4M3 or F32; heads past H are not read
  const smla_attention_scope* scope;   ///< the first scope
  const smla_attention_scope* scope2;  ///< the second; NULL: one scope
  const smla_tensor* sink;             ///< [H] F32; NULL: none
  const smla_tensor* o;                ///< [T, Hp, value_dim] BF16 or F32, written; heads H to Hp - 1 become 0
  const smla_tensor* lse;              ///< [T, H] F32, written; NULL: not wanted
  int64_t heads;                       ///< H; 0: the heads of q
  float scale;                         ///< 0: dim^-0.5
  float q_scale;                       ///< E4M3 q: number = e4m3 * q_scale; 0 means 1
  int32_t partial;                     ///< 0 or 1
  int32_t deterministic;               ///< 1: a query's result must not depend on its neighbours
  int32_t threads;                     ///< 0: as many as OpenMP would start
  int32_t reserved;                    ///< 0
  const char* implementation;          ///< "ref", "cpu", "avx2", "avx512", "cuda", ...; NULL: the best that accepts
  smla_device device;                  ///< whose memory all tensors lie in
  int32_t reserved2;                   ///< 0
  void* stream;                        ///< SMLA_CUDA: where to queue
  int64_t value_dim;                   ///< numbers of a row that are its value, the first; 0: all
  int64_t tokens_per_list;  ///< queries that share a row of indices, as those of a request do that verify its draft;
                            ///< all their heads evenly spaced in q, o and lse; 0 means 1
} smla_sparse_attention_args;

/// The workspace that `smla_sparse_attention` needs for these shapes (the tensors' data is not touched), and the
/// implementation it will take.
/// @param args            what smla_sparse_attention will get
/// @param workspace_bytes written; NULL: not wanted
/// @param implementation  written; NULL: not wanted. The text is valid as long as the library is loaded.
SMLA_API smla_status smla_sparse_attention_workspace(const smla_sparse_attention_args* args, size_t* workspace_bytes,
                                                     const char** implementation);
/// Computes.
/// @param args            the tensors
/// @param workspace       aligned to 64 bytes; NULL for 0 bytes
/// @param workspace_bytes at least what smla_sparse_attention_workspace says
SMLA_API smla_status smla_sparse_attention(const smla_sparse_attention_args* args, void* workspace,
                                           size_t workspace_bytes);

/// Partial results of S slices of the key list to the final one; the sink enters here, once.
///   lse = ln sum_i exp(lse_i),  o = sum_i exp(lse_i - lse) o_i / (1 + exp(sink_h - lse))
/// @param partial_o   [S, T, H, dim] F32
/// @param partial_lse [S, T, H] F32
/// @param sink        [H] F32; NULL: none
/// @param o           [T, H, dim] BF16 or F32, written
/// @param lse         [T, H] F32, written; NULL: not wanted
/// @param device      whose memory all tensors lie in
/// @param stream      SMLA_CUDA: where to queue; no workspace is needed
SMLA_API smla_status smla_merge_partials(const smla_tensor* partial_o, const smla_tensor* partial_lse,
                                         const smla_tensor* sink, const smla_tensor* o, const smla_tensor* lse,
                                         smla_device device, void* stream);

/* ---- any op by name ---- */

/// How many ops the library has.
SMLA_API int64_t smla_num_ops(void);
/// The name of op `index`, in the order of a layer; NULL past the last.
SMLA_API const char* smla_op_name(int64_t index);

/// What a member of an op is: the scalars of its problem, and then its tensors.
enum {
  SMLA_MEMBER_NONE = 0,     ///< past the last
  SMLA_MEMBER_INTEGER = 1,  ///< scalar, in `integer`
  SMLA_MEMBER_FLAG = 2,     ///< scalar, 0 or 1 in `integer`
  SMLA_MEMBER_DTYPE = 3,    ///< scalar, one of the SMLA_* dtypes in `integer`
  SMLA_MEMBER_NUMBER = 4,   ///< scalar, in `number`
  SMLA_MEMBER_FORMAT = 5,   ///< scalar, the name of a row format in `text`
  SMLA_MEMBER_RULE = 6,     ///< scalar, one of a few words in `text`; a wrong one is answered with the right ones
  SMLA_MEMBER_INPUT = 7,    ///< a tensor that is read
  SMLA_MEMBER_OUTPUT = 8,   ///< a tensor that is written
  SMLA_MEMBER_CACHE = 9     ///< a paged cache
};

/// A member of an op: its name is that of the member of the C++ struct (`sparsemla/ops/<family>.h`), whose comment says
/// what it means and which shape a tensor has.
typedef struct smla_op_member {
  uint64_t struct_size;  ///< sizeof(smla_op_member)
  const char* name;      ///< valid as long as the library is loaded; NULL past the last
  int32_t kind;          ///< one of SMLA_MEMBER_*
  int32_t reserved;      ///< 0
} smla_op_member;

/// Fills `*member` with member `index` of an op; past the last with NULL and SMLA_MEMBER_NONE.
/// @param op     the op's name
/// @param index  0 or more
/// @param member written, its struct_size set before
SMLA_API smla_status smla_op_get_member(const char* op, int64_t index, smla_op_member* member);

/// One scalar of an op's problem. Which of the three values counts is the member's kind; the other two stay 0 and NULL.
typedef struct smla_scalar {
  uint64_t struct_size;  ///< sizeof(smla_scalar); the same in all scalars of an array
  const char* name;      ///< of the member
  int64_t integer;       ///< integers, flags and dtypes
  double number;         ///< other numbers
  const char* text;      ///< row formats and rules, by name
} smla_scalar;

/// One tensor or cache of an op. With neither the member is absent, as if it were not given.
typedef struct smla_argument {
  uint64_t struct_size;       ///< sizeof(smla_argument); the same in all arguments of an array
  const char* name;           ///< of the member
  const smla_tensor* tensor;  ///< for a tensor
  const smla_cache* cache;    ///< for a cache
} smla_argument;

/// How an implementation is chosen.
typedef struct smla_plan_options {
  uint64_t struct_size;        ///< sizeof(smla_plan_options)
  const char* implementation;  ///< "ref", "cpu", "avx2", "avx512", "cuda", ...; NULL: the best that accepts
  smla_device device;          ///< where to run
  int32_t threads;             ///< 0: as many as OpenMP would start
  int32_t deterministic;       ///< 1: a row's result must not depend on its neighbours in the batch
  int32_t reserved;            ///< 0
} smla_plan_options;

/// An implementation, chosen for one problem of one op. It holds no tensor and no device memory.
typedef struct smla_plan smla_plan;

/// Plans an op. Scalars that are not given keep their defaults. Errors name the op and the member: an unknown name, a
/// name that is given twice, a value of another kind, an impossible problem.
/// @param op      the op's name, e.g. "rms_norm"
/// @param scalars `count` scalars of its problem
/// @param count   how many
/// @param options NULL: defaults, on the CPU
/// @param plan    written; smla_plan_destroy frees it
SMLA_API smla_status smla_plan_create(const char* op, const smla_scalar* scalars, int64_t count,
                                      const smla_plan_options* options, smla_plan** plan);
/// Frees a plan. NULL is allowed.
SMLA_API void smla_plan_destroy(smla_plan* plan);
/// What a plan chose and what its runs need. Either pointer may be NULL.
/// @param plan            the plan
/// @param workspace_bytes written
/// @param implementation  written: a name that is valid as long as the library is loaded
SMLA_API smla_status smla_plan_workspace(const smla_plan* plan, size_t* workspace_bytes, const char** implementation);
/// Runs a plan. Errors name the op and the tensor: an unknown name, a name that is given twice, a tensor that is
/// missing or does not fit the problem.
/// @param plan            the plan
/// @param arguments       `count` tensors and caches by name
/// @param count           how many
/// @param workspace       aligned to 64 bytes; NULL for 0 bytes
/// @param workspace_bytes at least what smla_plan_workspace says
/// @param stream          SMLA_CUDA: where to queue
SMLA_API smla_status smla_plan_run(const smla_plan* plan, const smla_argument* arguments, int64_t count,
                                   void* workspace, size_t workspace_bytes, void* stream);

/* ---- one attention layer ---- */

/// The numbers of one attention layer.
typedef struct smla_layer_config {
  uint64_t struct_size;       ///< sizeof(smla_layer_config)
  int64_t hidden_size;        ///< width of hidden states
  int64_t num_heads;          ///< query heads
  int64_t q_lora_rank;        ///< width of the low-rank query
  int64_t o_lora_rank;        ///< width of the low-rank output of a group
  int64_t o_groups;           ///< 0: 1
  int64_t head_dim;           ///< 0: 512
  int64_t rope_head_dim;      ///< 0: 64
  int64_t window;             ///< 0: 128
  int64_t compress_ratio;     ///< 0 or 1: window only; 4: C4A; 128: C128A
  int64_t index_n_heads;      ///< 0: 64
  int64_t index_head_dim;     ///< 0: 128
  int64_t index_topk;         ///< 0: 512
  double rms_norm_eps;        ///< 0: 1e-6
  double rope_theta;          ///< 0: 10000
  double yarn_factor;         ///< 0: no YaRN
  int64_t yarn_max_position;  ///< positions before YaRN; 0: 65536
  double yarn_beta_fast;      ///< 0: 32
  double yarn_beta_slow;      ///< 0: 1
  int32_t hadamard;           ///< 1: Walsh-Hadamard transform on both sides of the indexer
  int32_t reuses_topk;        ///< C4A, 1: runs no indexer, attends to what the layer before it chose in the same step
} smla_layer_config;

/// Fills `*config` with the numbers of a model's layer.
/// @param model  "v4-flash", "v4-pro", "tiny", or the path of a config.json
/// @param layer  index into the model's layers; those of multi-token prediction follow the decoder layers
/// @param config written, its struct_size set before
SMLA_API smla_status smla_model_layer_config(const char* model, int64_t layer, smla_layer_config* config);

/// How a layer computes.
typedef struct smla_layer_options {
  uint64_t struct_size;    ///< sizeof(smla_layer_options)
  int64_t max_position;    ///< rows of the rope table, which the layer makes and owns: one more than the largest
                           ///< position. Must be given
  const char* cache_rows;  ///< rows of the window and compressed caches: "fp8_ds_mla", "bf16", "fp8_per_tensor"; NULL:
                           ///< "fp8_ds_mla"
  const char* index_rows;  ///< rows of the index cache: "index_fp8", "index_mxfp4"; NULL: "index_fp8"
  smla_dtype precision;    ///< SMLA_BF16 or SMLA_F32: activations (SMLA_F32: caches too); 0: SMLA_BF16
  smla_dtype q_dtype;      ///< queries as attention sees them: SMLA_BF16 or SMLA_E4M3; 0: SMLA_BF16
  float q_scale;           ///< of E4M3 queries; 0 means 1
  float kv_scale;          ///< of fp8_per_tensor rows; 0 means 1
  int32_t threads;         ///< 0: as many as OpenMP would start
  int32_t deterministic;   ///< 1: a token's result must not depend on its neighbours in the batch
  const char* implementation;  ///< wanted for every op that has it and accepts, e.g. "ref"; NULL: the best of each
  const char* front_end;    ///< "flashmla", "flashinfer", "sm120" or one of upstream's backend names; NULL: "flashmla"
  const char* output_rows;  ///< what the output projection reads: "bf16", "fp8" (E4M3, fp32 scales) or "fp8-ue8m0";
                            ///< NULL: "bf16"
  int64_t padded_heads;     ///< heads of the query and output buffers inside; 0: the layer's
  int32_t strict;           ///< 1: refuse what upstream's kernels of the front-end refuse, with its texts
  int32_t
      gather_prefill;  ///< 1: flashmla copies a prefill's fp8_ds_mla rows into a bf16 workspace first, as upstream does
  smla_device
      device;  ///< where the layer runs; SMLA_CUDA: weights given by pointer, caches and activations are device memory
  int32_t
      fp8_weights;  ///< 1: smla_layer_create_from_checkpoint keeps the checkpoint's FP8 weights; 0: it dequantises them
  int32_t draft_blocks;   ///< 1: a layer of DSpark drafts: what it asks of its window cache (smla_cache_need.window),
                          ///< and a pool with it, is one token more, for a block sees `window` tokens before its first
  int32_t nvfp4_weights;  ///< as fp8_weights, of the checkpoint's NVFP4 weights
} smla_layer_options;

/// An attention layer: hidden states in, hidden states out. It holds a rope table and views of its weights.
typedef struct smla_layer smla_layer;

/// Makes a layer over weights in the caller's memory, which must stay until the layer is destroyed.
/// @param config   the layer's numbers
/// @param options  how it computes
/// @param names    `count` checkpoint names without "layers.<i>.attn.": "wq_a.weight", "q_norm.weight", "wq_b.weight",
/// "wkv.weight", "kv_norm.weight",
///                 "wo_a.weight", "wo_b.weight", "attn_sink"; with a compressor
///                 "compressor.{wkv.weight,wgate.weight,ape,norm.weight}"; C4A layers also "indexer.compressor.*",
///                 "indexer.wq_b.weight", "indexer.weights_proj.weight", which layers that reuse a choice (reuses_topk)
///                 need not have and do not read. A missing or unknown name is an error. The
///                 scales of an E4M3 weight stand beside it: "wq_a.scale" for "wq_a.weight"; those of an NVFP4 weight
///                 too: "wq_a.weight_scale" and "wq_a.weight_scale_2".
/// @param count    how many names and tensors
/// @param tensors  as many descriptors; linear weights BF16 or F32 [outputs, inputs], attn_sink F32. wq_a, wq_b, wkv,
/// wo_a, wo_b and indexer.wq_b may be
///                 E4M3 with scales [ceil(outputs/128), ceil(inputs/128)] F32: then their inputs are quantised to FP8,
///                 too. All linear weights may be NVFP4: SMLA_U8 [outputs, inputs/2], weight_scale E4M3
///                 [outputs, inputs/16], weight_scale_2 F32 [1]
/// @param layer    written; smla_layer_destroy frees it
SMLA_API smla_status smla_layer_create(const smla_layer_config* config, const smla_layer_options* options,
                                       const char* const* names, const smla_tensor* const* tensors, int64_t count,
                                       smla_layer** layer);
/// Makes a layer from a checkpoint: a folder with config.json and safetensors files. The layer owns the weights. The
/// checkpoint's own q and KV scales take the place of those in `options`.
/// @param folder   of the checkpoint
/// @param index    of the layer
/// @param options  how it computes
/// @param tp_rank  which tensor-parallel slice
/// @param tp_size  of how many; 0 or 1: the whole layer
/// @param layer    written; smla_layer_destroy frees it
SMLA_API smla_status smla_layer_create_from_checkpoint(const char* folder, int64_t index,
                                                       const smla_layer_options* options, int32_t tp_rank,
                                                       int32_t tp_size, smla_layer** layer);
/// Frees a layer. NULL is allowed. Steps made for the layer stay usable.
SMLA_API void smla_layer_destroy(smla_layer* layer);
/// Fills `*config` with the layer's numbers. Set `config->struct_size` before.
SMLA_API smla_status smla_layer_get_config(const smla_layer* layer, smla_layer_config* config);

/// What a cache of a layer holds.
enum {
  SMLA_CACHE_WINDOW = 0,       ///< rows of the last tokens; every layer
  SMLA_CACHE_COMPRESSED = 1,   ///< compressed entries; C4A and C128A
  SMLA_CACHE_INDEX = 2,        ///< index entries; C4A
  SMLA_CACHE_STATE = 3,        ///< the compressor's unfinished work; C4A and C128A
  SMLA_CACHE_INDEX_STATE = 4,  ///< the index compressor's; C4A
  SMLA_NUM_CACHES = 5          ///< how many there are
};

/// What a layer asks of one of its caches. Caches of one group share a block table for each request.
typedef struct smla_cache_need {
  uint64_t struct_size;  ///< sizeof(smla_cache_need)
  int32_t present;       ///< 0: the layer has no such cache, and the other fields are 0
  int32_t group;         ///< which of the step's block tables
  const char* format;    ///< rows; valid as long as the library is loaded
  int64_t block_size;    ///< rows in a block
  int64_t block_tokens;  ///< tokens of the sequence that a block stands for: token p is in column p / block_tokens of
                         ///< the block table
  int64_t window;        ///< how many of the last tokens must be kept; 0: all
  int64_t page_bytes;    ///< bytes of a block, padding included; a block stride may be this or larger
  float kv_scale;        ///< of fp8_per_tensor rows: from the options or the checkpoint
  int32_t reserved;      ///< 0
} smla_cache_need;

/// How many cache groups a layer has: 1 window-only, 3 C4A and C128A. 0 for NULL.
SMLA_API int32_t smla_layer_num_groups(const smla_layer* layer);
/// Fills `*need`.
/// @param layer the layer
/// @param role  one of SMLA_CACHE_*
/// @param need  written, its struct_size set before
SMLA_API smla_status smla_layer_cache_need(const smla_layer* layer, int32_t role, smla_cache_need* need);

/// One step's batch of R requests and T tokens: decodes first, prefills after.
typedef struct smla_step_batch {
  uint64_t struct_size;                ///< sizeof(smla_step_batch)
  const smla_tensor* query_start_loc;  ///< [R+1] I32 ascending from 0: tokens [i, i+1) belong to request i
  const smla_tensor* seq_lens;         ///< [R] I32 tokens of each request, this step's included; 0 for padding requests
  const smla_tensor* positions;        ///< [T] I64; tokens past the end of query_start_loc are padding
  const smla_tensor* const*
      block_tables;          ///< one for each group, [R, columns] I32 block numbers, -1 where there is none
  int32_t num_block_tables;  ///< as many as smla_layer_num_groups says
  int32_t reserved;          ///< 0
  int64_t max_seq_len;       ///< upper bound of seq_lens; 0: their maximum
  int64_t decode_threshold;  ///< requests at the head with at most this many tokens are decodes: 1 + draft tokens; 0: 1
  const int32_t* host_query_start_loc;  ///< [R+1] the host's copy of query_start_loc; must be given with SMLA_CUDA
                                        ///< layers, else NULL is fine
  const int32_t* host_seq_lens;         ///< [R] the same of seq_lens
  void* stream;                         ///< SMLA_CUDA layers: where to queue
  int64_t dspark_tokens;  ///< above 0: the decodes are DSpark draft blocks of as many draft tokens at most, whose
                          ///< tokens see the whole block, the later ones too; 0: causal
} smla_step_batch;

/// Slots and index rows of one step: built once, read by every layer of the same kind.
typedef struct smla_step smla_step;

/// Makes an empty step for layers of the same compress_ratio and cache formats as `layer`. Layers that reuse a choice
/// of entries (reuses_topk) run with the step of the layer that chooses, after it.
SMLA_API smla_status smla_step_create(const smla_layer* layer, smla_step** step);
/// Frees a step. NULL is allowed.
SMLA_API void smla_step_destroy(smla_step* step);
/// Computes the step's slots and index rows. Nothing of the batch needs to stay (with SMLA_CUDA: once the queued work
/// is done). On failure the step is empty. With SMLA_CUDA device memory is allocated when a batch is larger than any
/// before; a build that was made once can be recorded in a CUDA graph.
SMLA_API smla_status smla_step_build(smla_step* step, const smla_step_batch* batch);
/// A further draft step over the requests of a built step of window-only layers with one token a request, at seq_len -
/// 1: positions, slots and window rows are made anew in place, and plans stay good. Nothing is allocated, so that with
/// SMLA_CUDA a whole loop of draft steps can be recorded as one CUDA graph. On failure the step is as before.
/// @param step        a built step
/// @param seq_lens    [R] I32 where the step's tensors are, 0 for a request that sits out; NULL: each request that does
/// not sit out is one token longer than before, which the device alone needs to know
/// @param max_seq_len upper bound of seq_lens; 0: that of the step before, which always bounds them when seq_lens is
/// NULL
/// @param stream      SMLA_CUDA layers: where to queue
SMLA_API smla_status smla_step_advance(smla_step* step, const smla_tensor* seq_lens, int64_t max_seq_len, void* stream);
/// A look at what was built, e.g. for the caller's own cache writes: "window_slots" [T] I64 (where each token's row
/// goes, -1 for padding), "window_indices" [T, window] I32, "window_lens" [T] I32, and where the kind of layer has them
/// "entry_slots" [T] I64 (-1: the token closes no group), "entry_lens" [T] I32, "state_slots" and "index_state_slots"
/// [T] I64, "dense_indices" [T, W] I32, "dense_lens" [T] I32.
/// @param step   a built step
/// @param name   one of those above
/// @param tensor written, its struct_size set before; its data is read-only and valid until the step is built again or
/// destroyed
SMLA_API smla_status smla_step_get_tensor(const smla_step* step, const char* name, smla_tensor* tensor);

/// Caches of one layer; NULL where its kind has none. Format and block size must be those of smla_layer_cache_need.
typedef struct smla_layer_caches {
  uint64_t struct_size;                      ///< sizeof(smla_layer_caches)
  const smla_cache* cache[SMLA_NUM_CACHES];  ///< by SMLA_CACHE_*
} smla_layer_caches;

/// Workspace that no step of at most `tokens` tokens, `requests` requests and sequences of `max_seq_len` tokens
/// exceeds.
/// @param layer           the layer
/// @param tokens          of a step
/// @param requests        of a step
/// @param max_seq_len     of a request, this step's tokens included
/// @param workspace_bytes written
SMLA_API smla_status smla_layer_workspace(const smla_layer* layer, int64_t tokens, int64_t requests,
                                          int64_t max_seq_len, size_t* workspace_bytes);

/// The implementations and the workspace of a layer's forward over steps of one shape.
typedef struct smla_layer_plan smla_layer_plan;

/// Plans the forward of `layer` over steps like `step`: of as many tokens, requests and decodes, with prefills of the
/// same lengths, and a max_seq_len up to that of `step`. A host that gives smla_step_batch its longest sequence as
/// max_seq_len so keeps one plan for each size of a decode batch. Another step is an error of the forward.
/// @param layer the layer; the plan is for this one
/// @param step  a built step, made for a layer of this kind
/// @param plan  written; smla_layer_plan_destroy frees it
SMLA_API smla_status smla_layer_plan_create(const smla_layer* layer, const smla_step* step, smla_layer_plan** plan);
/// Frees a plan. NULL is allowed. The layer may be destroyed before.
SMLA_API void smla_layer_plan_destroy(smla_layer_plan* plan);
/// The workspace that a forward with this plan needs.
/// @param plan            the plan
/// @param workspace_bytes written
SMLA_API smla_status smla_layer_plan_workspace(const smla_layer_plan* plan, size_t* workspace_bytes);

/// Writes rows of tokens into a window-only layer's cache and computes nothing else: the context of a layer of DSpark
/// drafts, which sees what another stack made of these tokens and asks nothing about them.
/// @param layer           the layer
/// @param hidden          [T, hidden_size] in the layer's precision
/// @param positions       [T] I64
/// @param slots           [T] I64 of the window cache, -1 where nothing is written
/// @param window          the layer's window cache
/// @param workspace       64-byte aligned
/// @param workspace_bytes at least what smla_layer_context_workspace says
/// @param stream          SMLA_CUDA layers: where to queue
SMLA_API smla_status smla_layer_insert_context(const smla_layer* layer, const smla_tensor* hidden,
                                               const smla_tensor* positions, const smla_tensor* slots,
                                               const smla_cache* window, void* workspace, size_t workspace_bytes,
                                               void* stream);
/// Workspace that smla_layer_insert_context needs for `tokens` tokens.
SMLA_API smla_status smla_layer_context_workspace(const smla_layer* layer, int64_t tokens, size_t* workspace_bytes);

/// output = attention(hidden) for the tokens of a built step. Writes the step's rows into the caches. Padding tokens
/// give 0.
/// @param layer           the layer
/// @param plan            for this layer and a step of this shape; NULL: it is planned anew
/// @param step            a built step, made for a layer of this kind
/// @param caches          the layer's caches
/// @param hidden          [T, hidden_size] in the layer's precision
/// @param output          [T, hidden_size] the same, written
/// @param workspace       aligned to 64 bytes
/// @param workspace_bytes at least what smla_layer_plan_workspace, or smla_layer_workspace for a step like this one,
/// says
/// @param stream          SMLA_CUDA layers: where to queue
SMLA_API smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_plan* plan, const smla_step* step,
                                        const smla_layer_caches* caches, const smla_tensor* hidden,
                                        const smla_tensor* output, void* workspace, size_t workspace_bytes,
                                        void* stream);

/* ---- blocks and prefixes: for hosts that keep no account of their own ---- */

/// The caches of a list of layers in one slab of equal blocks, and who holds which block (docs/architecture.md). Its
/// requests and prefix caches keep it alive. A pool, its requests and its prefix caches serve one thread at a time.
typedef struct smla_pool smla_pool;
/// The blocks of one request, a table for each cache group, and its tokens as a prefix cache compares them.
typedef struct smla_request smla_request;
/// Finds blocks of prefixes that were computed before and lends them to requests (docs/prefix-caching.md).
typedef struct smla_prefix_cache smla_prefix_cache;

/// Makes a pool in the memory of the layers' device: on a GPU of the current one, where blocks are zeroed on `stream`.
/// @param layers     `count` layers on one device, with the same rows; the pool does not need them to stay
/// @param count      at least 1
/// @param num_blocks that can be held; one more, block 0, nobody ever holds
/// @param stream     SMLA_CUDA layers: where blocks are zeroed
/// @param pool       written; smla_pool_destroy frees it
SMLA_API smla_status smla_pool_create(const smla_layer* const* layers, int64_t count, int64_t num_blocks, void* stream,
                                      smla_pool** pool);
/// Frees a pool, once its requests and prefix caches are freed, too. NULL is allowed.
SMLA_API void smla_pool_destroy(smla_pool* pool);

/// Counts of a pool.
typedef struct smla_pool_info {
  uint64_t struct_size;  ///< sizeof(smla_pool_info)
  int64_t num_blocks;    ///< that can be held
  int64_t free_blocks;   ///< that nobody holds
  int64_t idle_blocks;   ///< that prefix caches alone hold: smla_prefix_make_room frees them
  int64_t block_bytes;   ///< from one block to the next
  int32_t num_groups;    ///< cache groups: each request has a block table for each
  int32_t reserved;      ///< 0
} smla_pool_info;
/// Fills `*info`, its struct_size set before.
SMLA_API smla_status smla_pool_get_info(const smla_pool* pool, smla_pool_info* info);
/// A cache of a layer, for smla_layer_caches, and the group whose block table it uses.
/// @param pool  the pool
/// @param layer place in the list that the pool was made of
/// @param role  one of SMLA_CACHE_*, one that the layer has
/// @param cache written, its struct_size set before; valid as long as the pool
/// @param group written; NULL: not wanted
SMLA_API smla_status smla_pool_get_cache(const smla_pool* pool, int64_t layer, int32_t role, smla_cache* cache,
                                         int32_t* group);

/// Makes a request without blocks.
SMLA_API smla_status smla_request_create(smla_pool* pool, smla_request** request);
/// Gives the request's blocks back and frees it. NULL is allowed.
SMLA_API void smla_request_destroy(smla_request* request);
/// Makes room for positions [begin, end) in every group, zeroed on the pool's stream. All or nothing: `*reserved` is 0
/// when the pool has too few free blocks, else 1.
SMLA_API smla_status smla_request_reserve(smla_request* request, int64_t begin, int64_t end, int32_t* reserved);
/// The blocks that smla_request_reserve(begin, end) takes: what to ask smla_prefix_make_room for.
SMLA_API smla_status smla_request_missing(const smla_request* request, int64_t begin, int64_t end, int64_t* blocks);
/// Gives back what no query at `next_position` or later can see.
SMLA_API smla_status smla_request_slide(smla_request* request, int64_t next_position);
/// Gives all blocks back; the tokens stay, so that it can be looked up again.
SMLA_API smla_status smla_request_clear(smla_request* request);
/// A block table: what smla_step_batch wants for the group. `*blocks` is valid until the request changes.
/// @param request the request
/// @param group   as smla_pool_get_cache says
/// @param blocks  written: block numbers, -1 where there is none
/// @param count   written: how many
SMLA_API smla_status smla_request_table(const smla_request* request, int32_t group, const int32_t** blocks,
                                        int64_t* count);
/// Appends the request's next tokens. Only tokens that were appended can be found or kept.
SMLA_API smla_status smla_request_append_tokens(smla_request* request, const int32_t* tokens, int64_t count);

/// What of a prefix is kept.
typedef struct smla_prefix_cache_options {
  uint64_t struct_size;        ///< sizeof(smla_prefix_cache_options)
  int64_t retention_interval;  ///< a prefix can end at each multiple of so many tokens; 0: 512
  int32_t no_prompt_end;       ///< 1: not also at the end of a prompt, rounded down
  int32_t reserved;            ///< 0
} smla_prefix_cache_options;

/// Makes a prefix cache over the blocks of a pool. `options` NULL: defaults.
SMLA_API smla_status smla_prefix_cache_create(smla_pool* pool, const smla_prefix_cache_options* options,
                                              smla_prefix_cache** cache);
/// Gives up what it keeps and frees it. NULL is allowed.
SMLA_API void smla_prefix_cache_destroy(smla_prefix_cache* cache);
/// Tokens of the longest prefix of at most `max_tokens` tokens that is there.
SMLA_API smla_status smla_prefix_find(smla_prefix_cache* cache, const smla_request* request, int64_t max_tokens,
                                      int64_t* tokens);
/// Puts the blocks of that prefix into a request that holds none.
/// @param cache      the prefix cache
/// @param request    of the same pool
/// @param max_tokens at most: one less than the request's tokens leaves one to compute
/// @param tokens     written: its length, the first position to compute; 0: nothing was found
SMLA_API smla_status smla_prefix_adopt(smla_prefix_cache* cache, smla_request* request, int64_t max_tokens,
                                       int64_t* tokens);
/// Keeps what the rule wants of positions [begin, end), whose rows were computed or queued, for others. Call it before
/// smla_request_slide gives their blocks back.
/// @param cache         the prefix cache
/// @param request       of the same pool, with its tokens appended
/// @param begin         the first position
/// @param end           the position behind the last
/// @param prompt_tokens length of the request's prompt
SMLA_API smla_status smla_prefix_keep(smla_prefix_cache* cache, smla_request* request, int64_t begin, int64_t end,
                                      int64_t prompt_tokens);
/// Evicts what was used longest ago until the pool has so many free blocks: `*made` is 1 then, else 0.
SMLA_API smla_status smla_prefix_make_room(smla_prefix_cache* cache, int64_t free_blocks, int32_t* made);

/// Counts of a prefix cache.
typedef struct smla_prefix_stats {
  uint64_t struct_size;   ///< sizeof(smla_prefix_stats)
  int64_t unit;           ///< tokens of a block of a prefix: prefixes end at its multiples
  int64_t lookups;        ///< calls of smla_prefix_adopt
  int64_t hits;           ///< of them, those that found a prefix
  int64_t hit_tokens;     ///< of the prefixes that were found
  int64_t kept_tails;     ///< ends of prefixes that were kept
  int64_t evicted_tails;  ///< and given up again for room
  int64_t tails;          ///< that are there
  int64_t blocks;         ///< of the pool that it holds
} smla_prefix_stats;
/// Fills `*stats`, its struct_size set before.
SMLA_API smla_status smla_prefix_get_stats(const smla_prefix_cache* cache, smla_prefix_stats* stats);

#ifdef __cplusplus
}
#endif
