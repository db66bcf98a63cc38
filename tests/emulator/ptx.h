#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

// A kernel as it is executed: instructions out of PTX text, with operands that are places of 32 lanes.

constexpr int kLanes = 32;
constexpr std::uint32_t kAll = 0xFFFF'FFFFU;

/// What a kernel or its text did wrong; what() says where.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type : std::uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,  // clang-format off
  kF16, kBF16, kF16x2, kBF16x2, kF32, kF64, kE4M3, kE4M3x2,  // clang-format on
};
/// Bytes of a type.
int size_of(Type type);

enum class Space : std::uint8_t { kGeneric, kGlobal, kShared, kSharedCluster, kLocal, kParam };

/// 32 lanes of a register or of a constant: 4 bytes each, or 8 where wide; a predicate is one word of 32 bits.
struct Operand {
  std::uint32_t at = 0;  ///< bytes from the beginning of the warp's registers or the kernel's constants
  bool constant = false;
  bool wide = false;
  bool negated = false;     ///< of a predicate
  bool absent = false;      ///< `_`
  std::int64_t offset = 0;  ///< of an address: bytes to add
};

struct Warp;
struct Instruction;
using Run = void (*)(Warp&, const Instruction&, std::uint32_t lanes);

/// What the loop over instructions must know of one.
enum class Flow : std::uint8_t {
  kPlain,   ///< runs and goes on
  kBranch,  ///< to `target`
  kExit,
  kBarrier,  ///< of the block; `run` is called when the barrier opens
  kClusterWait,
  kWarpBarrier,  ///< bar.warp.sync
  kTryWait,      ///< of an mbarrier; where it fails the warp yields
  kYield,
};

struct Instruction {
  Run run = nullptr;
  Flow flow = Flow::kPlain;
  bool converges = false;  ///< needs all lanes of the warp, or those of `members`
  bool has_members = false;
  bool keeps = false;  ///< a part of what it writes: a product adds to it, or some lanes are left out
  bool guarded = false;
  Operand guard;
  Operand members;
  Type type = Type::kNone;
  Type from = Type::kNone;
  Space space = Space::kGeneric;
  std::uint8_t mode = 0;  ///< of the instruction: comparison, rounding, count...
  std::uint8_t mode2 = 0;
  bool saturates = false;
  bool flushes = false;  ///< ftz
  std::uint32_t target = 0;
  std::int64_t value = 0;
  std::vector<Operand> d;  ///< written
  std::vector<Operand> s;  ///< read
  std::uint32_t line = 0;  ///< of the PTX text
};

/// A register that a warp finds filled in.
struct Special {
  std::string name;
  Operand at;
};

struct Parameter {
  std::size_t offset;
  std::size_t size;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::vector<Instruction> code;
  std::vector<std::string> text;  ///< of each instruction, for messages
  std::size_t register_bytes = 0;
  std::vector<std::byte> constants;
  std::vector<Special> specials;
  std::size_t static_shared = 0;
  std::size_t local_bytes = 0;
  int most_threads = 1024;
  Operand parameter_base;  ///< 64-bit register that holds the address of the parameters
  Operand local_base;      ///< of each lane's local memory
};

/// The kernels and variables of one PTX text.
struct Module {
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
  std::vector<std::unique_ptr<std::vector<std::byte>>> variables;
};

/// @throws Error for text or an instruction that it does not know, with the line.
Module parse(std::string_view text);

/// Gives registers of a kernel whose lives do not meet the same place.
void share_registers(Kernel& kernel);

/// Finishes an instruction out of its name, in pieces, and its operands. @throws Error for one that it does not know.
void decode(Instruction& i, const std::vector<std::string>& name);

}  // namespace emulator
