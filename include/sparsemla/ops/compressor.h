#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Compressor, step 1 (spec 3): writes the row (kv, score + ape[pos mod r]) of every token with state slot >= 0 to the
/// paged state cache. Skipped: tokens with a slot outside the cache or a negative position. The slots of a call are
/// distinct (of two tokens with one slot, either may win).
struct SaveState {
  static constexpr std::string_view kName = "save_state";
  struct Problem {
    std::int64_t tokens = 0;
    int ratio = 4;                                   ///< r: 4 (overlapping, coff 2) or 128 (coff 1)
    int dim = 512;                                   ///< d: 512 for a layer's compressor, 128 for its indexer's
    int coff() const { return ratio == 4 ? 2 : 1; }  ///< halves of a state row: 2 with overlap, else 1
  };
  struct Args {
    ConstTensorView kv_score;     ///< [T, 2*coff*d] F32: kv then score, rows may be strided
    ConstTensorView ape;          ///< [r, coff*d] F32 or BF16
    ConstTensorView positions;    ///< [T] I64
    ConstTensorView state_slots;  ///< [M] I64, M <= T; -1: the token writes nothing
    PagedCache state;             ///< rows of state_rows(d, coff)
  };
};

/// Compressor, step 2 (spec 3): for every token that closes a group, pools the window from the state cache, norms
/// (RMSNorm), rotates at position g*r and stores an entry.
///
/// Token t makes an entry when state_slots[t] >= 0, (pos+1) mod r == 0 and entry_slots[t] >= 0. Its window is the W =
/// coff*r positions up to pos, read back through the block table; positions < 0 count as value 0 and logit -inf. r = 4:
/// the first 4 rows give channels [0,d), the last 4 give [d,2d).
///   e[c] = sum_j softmax_j(score[j,c]) * kv[j,c];  y = RMSNorm(e; w, eps) in fp32;  last rope_dim dims rotated at (pos
///   / r) * r; encoded in the cache's format.
/// The nope dims are rounded to bf16 before the quantiser; full rows are rounded to bf16 first, F32 rows are not
/// rounded. With `hadamard` the rotated row is rounded to bf16 before the transform (not for F32 rows) and encoded
/// after it.
///
/// No number in the tensors can make it read or write outside of them. A window row whose column is outside the block
/// table, or whose block is outside the state cache, counts like a position < 0. A token is skipped (its entry is not
/// written) when its request is not a row of the block table, its entry slot is outside `entries`, its group's position
/// is not a row of `cos_sin`, or no row of its window can be read. A channel whose logits are all -inf pools to 0. The
/// entry slots of a call are distinct.
///
/// Without `kv_score` the caller has written all state rows with SaveState before. With `kv_score` and `ape` the call
/// writes the rows itself, as SaveState does, before it pools. Two rules hold then: the tokens of a request are
/// adjacent and in order, and a state row that the call writes is pooled only by windows that contain the row's new
/// position.
///
/// A call may have several compressors of one ratio, for example a layer's and its indexer's. None reads or writes what
/// belongs to another. kv_score is given for all of them or for none.
struct CompressStore {
  static constexpr std::string_view kName = "compress_store";
  static constexpr int kMaxCompressors = 2;

  /// The shape of a compressor.
  struct CompressorShape {
    int dim = 512;                      ///< d: numbers of an entry
    const RowFormat* format = nullptr;  ///< rows of the entry cache
    bool hadamard = false;              ///< indexer only: normalised Walsh-Hadamard transform after RoPE (spec 4.1)
  };
  struct Problem {
    std::int64_t tokens = 0;
    int ratio = 4;                                              ///< r: tokens of an entry
    int rope_dim = 64;                                          ///< numbers of an entry that are rotated, its last
    float eps = 1e-6F;                                          ///< RMSNorm's epsilon
    ClampRule clamp = ClampRule::kAmax;                         ///< the quantiser's floor
    int compressors = 1;                                        ///< 1 or 2
    std::array<CompressorShape, kMaxCompressors> compressor{};  ///< shape of each compressor
    int coff() const { return ratio == 4 ? 2 : 1; }             ///< halves of a state row: 2 with overlap, else 1
  };
  /// The tensors of one compressor.
  struct Compressor {
    ConstTensorView state_slots;  ///< [M] I64, M <= T, the same M for all
    ConstTensorView block_table;  ///< [requests, columns] I32 of the state cache; negative entries are read as block 0
    ConstTensorView norm_weight;  ///< [d] BF16 or F32
    ConstTensorView kv_score{};   ///< [T, 2*coff*d] F32 as SaveState takes it; absent: the rows are in the state cache
    ConstTensorView ape{};        ///< [r, coff*d] F32 or BF16, with kv_score
    PagedCache state;             ///< state rows; with kv_score they are written before they are read
    PagedCache entries;           ///< cache of the compressed entries
  };
  struct Args {
    ConstTensorView positions;                              ///< [T] I64
    ConstTensorView token_to_req;                           ///< [T] I32
    ConstTensorView entry_slots;                            ///< [M] I64: slot in every `entries`, -1 none
    ConstTensorView cos_sin;                                ///< [L, rope_dim] F32
    std::array<Compressor, kMaxCompressors> compressors{};  ///< as many as the problem says
    /// The launch just ahead on the stream is that of a JointProjection by `sm90_stream`. A GPU may then run both at
    /// once: what is read here must have been written ahead of that launch.
    bool beside_previous = false;
  };
};

}  // namespace smla
