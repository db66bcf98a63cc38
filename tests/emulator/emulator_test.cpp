// The emulator on small kernels: what it computes where lanes part, and that it finds what a kernel does wrong.
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "emulator/cudart.h"

namespace emulator {
namespace {

/// Runs the only kernel of a text with one block over the numbers. Returns what it says that the kernel did wrong.
std::string run_text(const std::string& body, std::vector<std::uint32_t>& numbers, std::uint32_t threads = 32,
                     std::size_t shared = 0) {
  const std::string text = R"(
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 k_param_0)
{
  .reg .pred %p<8>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [k_param_0];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
)" + body + "\n}\n";
  try {
    const Module module = parse(text);
    Launch launch;
    launch.kernel = module.kernels.at("k").get();
    launch.block[0] = threads;
    launch.dynamic_shared = shared;
    const auto begin = reinterpret_cast<std::uintptr_t>(numbers.data());
    launch.memory = {{begin, begin + 4 * numbers.size()}};
    launch.parameters.resize(launch.kernel->parameter_bytes + 16);
    std::memcpy(launch.parameters.data(), &begin, sizeof begin);
    run(launch);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
std::vector<std::uint32_t> counted(std::size_t n) {
  std::vector<std::uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0U);
  return v;
}

TEST(Emulator, LanesPartAndMeetAgain) {
  std::vector<std::uint32_t> v = counted(32);
  // Odd lanes go round a loop as often as their number says; then the sum over all lanes.
  ASSERT_EQ(run_text(R"(
  mov.u32 %r2, 0;
  and.b32 %r3, %r1, 1;
  setp.eq.s32 %p1, %r3, 0;
  @%p1 bra $after;
$loop:
  add.s32 %r2, %r2, 1;
  setp.lt.u32 %p2, %r2, %r1;
  @%p2 bra $loop;
$after:
  mov.b32 %r4, 0xFFFFFFFF;
  redux.sync.add.u32 %r5, %r2, %r4;
  shfl.sync.idx.b32 %r6|%p3, %r2, 31, 31, -1;
  add.s32 %r5, %r5, %r6;
  st.global.u32 [%rd3], %r5;
  ret;)",
                     v),
            "");
  for (const std::uint32_t x : v) EXPECT_EQ(x, 256U + 31U);
}

TEST(Emulator, TheFirstLaneIsElected) {
  std::vector<std::uint32_t> v = counted(64);
  ASSERT_EQ(run_text(R"(
  elect.sync %r2|%p1, -1;
  selp.b32 %r3, 100, 200, %p1;
  add.s32 %r3, %r3, %r2;
  elect.sync _|%p2, -1;
  @%p2 add.s32 %r3, %r3, 1;
  st.global.u32 [%rd3], %r3;
  ret;)",
                     v, 64),
            "");
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v[i], i % 32 == 0 ? 101U : 200U);
}

TEST(Emulator, BarriersOrderSharedMemory) {
  std::vector<std::uint32_t> v = counted(128);
  ASSERT_EQ(run_text(R"(
  mov.u32 %r2, dynamic;
  shl.b32 %r3, %r1, 2;
  add.s32 %r4, %r2, %r3;
  st.shared.u32 [%r4], %r1;
  bar.sync 0;
  sub.s32 %r5, 127, %r1;
  shl.b32 %r5, %r5, 2;
  add.s32 %r5, %r5, %r2;
  ld.shared.u32 %r6, [%r5];
  st.global.u32 [%rd3], %r6;
  ret;)",
                     v, 128, 512),
            "");
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v[i], 127 - i);
}

TEST(Emulator, AnMbarrierLetsWarpsThroughPhaseByPhase) {
  std::vector<std::uint32_t> v = counted(64);
  // Warp 1 waits for 32 arrivals of warp 0, whose number was written before.
  ASSERT_EQ(run_text(R"(
  mov.u32 %r2, dynamic;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra $made;
  mbarrier.init.shared.b64 [%r2], 32;
$made:
  bar.sync 0;
  setp.lt.u32 %p2, %r1, 32;
  @%p2 bra $writes;
  { .reg .pred done;
  again: mbarrier.try_wait.parity.shared.b64 done, [%r2], 0;
  @!done bra again; }
  ld.shared.u32 %r3, [%r2+8];
  st.global.u32 [%rd3], %r3;
  ret;
$writes:
  nanosleep.u32 100;
  st.shared.u32 [%r2+8], 77;
  mbarrier.arrive.shared.b64 _, [%r2];
  ret;)",
                     v, 64, 64),
            "");
  for (std::size_t i = 32; i < v.size(); ++i) EXPECT_EQ(v[i], 77U);
}

TEST(Emulator, AnMbarrierCountsTheBytesOfCopies) {
  std::vector<std::uint32_t> v = counted(64);
  // A copy before and a store after what is expected, and an arrival: only then does the phase end.
  ASSERT_EQ(run_text(R"(
  mov.u32 %r2, dynamic;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra $made;
  mbarrier.init.shared.b64 [%r2], 1;
$made:
  bar.sync 0;
  setp.lt.u32 %p2, %r1, 32;
  @%p2 bra $copies;
  { .reg .pred done;
  again: mbarrier.try_wait.parity.shared.b64 done, [%r2], 0;
  @!done bra again; }
  ld.shared.u32 %r3, [%r2+20];
  ld.shared.u32 %r4, [%r2+32];
  add.s32 %r3, %r3, %r4;
  st.global.u32 [%rd3], %r3;
  ret;
$copies:
  setp.ne.s32 %p1, %r1, 0;
  @%p1 ret;
  add.s32 %r5, %r2, 16;
  mov.u32 %r6, 16;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd1], %r6, [%r2];
  mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 24;
  nanosleep.u32 100;
  mapa.shared::cluster.u32 %r7, %r2, 0;
  add.s32 %r8, %r7, 32;
  mov.u32 %r9, 500;
  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r8], {%r9, %r9}, [%r7];
  ret;)",
                     v, 64, 64),
            "");
  for (std::size_t i = 32; i < v.size(); ++i) EXPECT_EQ(v[i], 501U);
}

/// d = a b of tf32 numbers: a is 1 in row r, column r of 8, b[k][n] is 8 k + n; 13 bits of each are not read.
TEST(Emulator, ProductsOfTf32Numbers) {
  std::vector<std::uint32_t> v = counted(32);
  ASSERT_EQ(run_text(R"(
  .reg .f32 %f<8>;
  and.b32 %r2, %r1, 3;
  shr.u32 %r3, %r1, 2;
  setp.eq.u32 %p1, %r2, %r3;
  selp.b32 %r4, 0x3F801FFF, 0, %p1;
  add.u32 %r5, %r2, 4;
  setp.eq.u32 %p2, %r5, %r3;
  selp.b32 %r6, 0x3F801FFF, 0, %p2;
  shl.b32 %r7, %r2, 3;
  add.u32 %r7, %r7, %r3;
  cvt.rn.f32.u32 %f1, %r7;
  mov.b32 %r8, %f1;
  add.u32 %r9, %r7, 32;
  cvt.rn.f32.u32 %f2, %r9;
  mov.b32 %r10, %f2;
  mov.f32 %f3, 0f00000000;
  mov.u32 %r11, 0;
  mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f4, %f5, %f6, %f7}, {%r4, %r11, %r6, %r11}, {%r8, %r10}, {%f3, %f3, %f3, %f3};
  cvt.rzi.u32.f32 %r12, %f5;
  st.global.u32 [%rd3], %r12;
  ret;)",
                     v),
            "");
  for (std::size_t l = 0; l < v.size(); ++l) EXPECT_EQ(v[l], 8 * (l / 4) + 2 * (l % 4) + 1);
}

TEST(Emulator, TheLargerHalfMayBeNan) {
  std::vector<std::uint32_t> v{0xC0003C00,   // 1 and -2
                               0x7E00FC00,   // -inf and NaN
                               0x03FF8001,   // numbers without a leading one
                               0x00003E00};  // 1.5 and 0
  ASSERT_EQ(run_text(R"(
  ld.global.u32 %r2, [%rd3];
  mov.b32 %r3, 0x3C003C00;
  abs.f16x2 %r2, %r2;
  max.NaN.f16x2 %r4, %r3, %r2;
  st.global.u32 [%rd3], %r4;
  ret;)",
                     v, 4, 0),
            "");
  EXPECT_EQ(v[0], 0x40003C00U);
  EXPECT_GT(v[1] >> 16 & 0x7FFFU, 0x7C00U);
  EXPECT_EQ(v[1] & 0xFFFFU, 0x7C00U);
  EXPECT_EQ(v[2], 0x3C003C00U);
  EXPECT_EQ(v[3], 0x3C003E00U);
}

TEST(Emulator, Fp8ProductsCutOffWhatIsSmallBesideTheLargest) {
  // Rows of 448 and 31 times 2^-9 (e4m3), swizzled, times rows of 1: 448.06. The second product adds the first.
  std::vector<std::uint32_t> v = counted(128);
  ASSERT_EQ(run_text(R"(
  .reg .f32 %f<5>;
  mov.u32 %r2, dynamic;
  shl.b32 %r3, %r1, 3;
  add.s32 %r3, %r2, %r3;
  mov.b32 %r4, 0x01010101;
  st.shared.u32 [%r3], %r4;
  st.shared.u32 [%r3+4], %r4;
  bar.sync 0;
  setp.gt.u32 %p1, %r1, 7;
  @%p1 bra $filled;
  mul.lo.s32 %r3, %r1, 144;
  add.s32 %r3, %r2, %r3;
  mov.b32 %r5, 0x0101017E;
  st.shared.u32 [%r3], %r5;
$filled:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.b32 %r6, 0x38383838;
  shr.u32 %r7, %r2, 4;
  cvt.u64.u32 %rd4, %r7;
  or.b64 %rd4, %rd4, 0x4000004000010000;
  setp.ne.b32 %p2, %r2, %r2;
  setp.eq.b32 %p3, %r2, %r2;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, %rd4, %p2, 1, 1;
  wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, %rd4, %p3, 1, 1;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  add.f32 %f1, %f1, %f2;
  add.f32 %f3, %f3, %f4;
  add.f32 %f1, %f1, %f3;
  st.global.f32 [%rd3], %f1;
  ret;)",
                     v, 128, 1024),
            "");
  for (const std::uint32_t x : v) EXPECT_EQ(std::bit_cast<float>(x), 4 * 896.0F);
}

TEST(Emulator, ProductsOfBf16InRegistersFindTheirNumbers) {
  // a (64 x 16) in registers; row n of b has 1 for input n and 256 for input n + 8.
  const auto number = [](std::size_t row, std::size_t k) { return static_cast<float>((row * 5 + k * 3) % 127); };
  std::vector<std::uint32_t> v(4 * 128);
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t lane = i % 32;
    const std::size_t row = i % 128 / 32 * 16 + i / 128 % 2 * 8 + lane / 4;
    const std::size_t k = i / 256 * 8 + lane % 4 * 2;
    v[i] = std::bit_cast<std::uint32_t>(number(row, k)) >> 16 |
           (std::bit_cast<std::uint32_t>(number(row, k + 1)) & 0xFFFF0000U);
  }
  ASSERT_EQ(run_text(R"(
  .reg .f32 %f<5>;
  mov.u32 %r2, dynamic;
  shl.b32 %r3, %r1, 3;
  add.s32 %r3, %r2, %r3;
  mov.b32 %r4, 0;
  st.shared.u32 [%r3], %r4;
  st.shared.u32 [%r3+4], %r4;
  bar.sync 0;
  setp.gt.u32 %p1, %r1, 7;
  @%p1 bra $filled;
  mul.lo.s32 %r3, %r1, 146;
  add.s32 %r3, %r2, %r3;
  mov.b32 %r4, 0x3F80;
  st.shared.u16 [%r3], %r4;
  xor.b32 %r3, %r3, 16;
  mov.b32 %r4, 0x4380;
  st.shared.u16 [%r3], %r4;
$filled:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  ld.global.u32 %r4, [%rd3];
  ld.global.u32 %r5, [%rd3+512];
  ld.global.u32 %r6, [%rd3+1024];
  ld.global.u32 %r7, [%rd3+1536];
  shr.u32 %r8, %r2, 4;
  cvt.u64.u32 %rd4, %r8;
  or.b64 %rd4, %rd4, 0x4000004000010000;
  setp.ne.b32 %p2, %r2, %r2;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {%r4, %r5, %r6, %r7}, %rd4, %p2, 1, 1, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  st.global.f32 [%rd3], %f1;
  st.global.f32 [%rd3+512], %f2;
  st.global.f32 [%rd3+1024], %f3;
  st.global.f32 [%rd3+1536], %f4;
  ret;)",
                     v, 128, 1024),
            "");
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t lane = i % 32;
    const std::size_t row = i % 128 / 32 * 16 + i / 256 * 8 + lane / 4;
    const std::size_t n = lane % 4 * 2 + i / 128 % 2;
    EXPECT_EQ(std::bit_cast<float>(v[i]), number(row, n) + 256 * number(row, n + 8)) << row << ", " << n;
  }
}

TEST(Emulator, MemoryMadeInACaptureBreaksIt) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 64), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 64), cudaSuccess);  // what the thread says that it knows of
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Emulator, SaysWhereAKernelIsWrong) {
  std::vector<std::uint32_t> v = counted(32);
  const auto found = [&](const std::string& body, const std::string& words) {
    const std::string said = run_text(body, v, 64, 64);
    EXPECT_NE(said.find(words), std::string::npos) << body << "\n" << said;
  };
  found("st.global.u32 [%rd3+128], %r1; ret;", "which is no memory of the GPU");
  found("st.global.u32 [%rd1+2], %r1; ret;", "is not aligned to 4");
  found("mov.u32 %r2, dynamic; st.shared.u32 [%r2+65536], %r1; ret;", "past its");
  found(
      "mov.u32 %r2, dynamic; mbarrier.init.shared.b64 [%r2], 65; bar.sync 0;\n"
      "mbarrier.arrive.shared.b64 _, [%r2];\n"
      "{ .reg .pred done;\n again: mbarrier.try_wait.parity.shared.b64 done, [%r2], 0;\n @!done bra again; }\n ret;",
      "all warps wait");
  found("setp.lt.u32 %p1, %r1, 32; @%p1 bra $away; bar.sync 1, 64; $away: ret;", "all warps wait");
  found("setp.lt.u32 %p1, %r1, 16; @%p1 bra $away; shfl.sync.idx.b32 %r2|%p2, %r1, 3, 31, -1; $away: ret;",
        "shfl from a lane that does not take part");
  found("bar.warp.sync 1; ret;", "does not belong to");
  found("frobnicate.b32 %r1, %r2; ret;", "does not know");
  found("mov.b32 %r1, nobody; ret;", "unknown name nobody");
}

}  // namespace
}  // namespace emulator
