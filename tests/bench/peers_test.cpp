#include "bench/peers.h"

#include <gtest/gtest.h>

#include "report.h"
#include "sparsemla/error.h"

namespace smla::bench {
namespace {

constexpr std::string_view kHead =
    "# source: S\n# card: C\n# method: M\n# ceiling product_tflops 799\n# ceiling copy_gbs 4000\n# ceiling "
    "gather_64_gbs 3580\n";

PeerTable parse(const std::string& body) { return parse_peer_table("t", std::string(kHead) + body); }

TEST(BenchPeers, TheTreesTablesAreWhole) {
  const std::map<std::string, std::size_t> cells{
      {"decode", 108}, {"decode_one_process", 50}, {"indexer", 32}, {"indexer_prefill", 6}, {"ops", 112},
      {"prefill", 48}, {"prefill_few", 6}};
  ASSERT_EQ(peer_tables().size(), cells.size());
  for (const PeerTable& table : peer_tables()) {
    SCOPED_TRACE(table.name);
    ASSERT_TRUE(cells.contains(table.name));
    EXPECT_EQ(table.cells.size(), cells.at(table.name));
    // Of the run in one process only the product was written down.
    const bool one_process = table.says.at("method").find("one process") != std::string::npos;
    for (const char* ceiling : {"product_tflops", "copy_gbs", "gather_2_gbs", "gather_64_gbs"})
      EXPECT_EQ(table.ceilings.contains(ceiling), !one_process || std::string_view(ceiling) == "product_tflops");
    EXPECT_NE(table.says.at("card").find("H200"), std::string::npos);
    for (const auto& [key, cell] : table.cells) {
      EXPECT_TRUE(cell.numbers.contains("us") || cell.numbers.contains("tflops")) << key;
      EXPECT_EQ(table.name == "ops", !cell.ours.empty()) << key;
    }
  }
}

TEST(BenchPeers, KnownCells) {
  const auto number = [](std::string_view cell, const char* what) {
    return find_peer(peer_tables(), cell).cell->numbers.at(what);
  };
  EXPECT_EQ(number("decode/64/swa/1", "us"), 11.5);
  EXPECT_EQ(number("decode/128/c128_1M/256", "us"), 1273.6);
  EXPECT_EQ(number("decode/128/c128_1M/256", "floor_us"), 698.8);
  EXPECT_EQ(number("prefill/64/8192/640/512", "tflops"), 473);
  EXPECT_EQ(number("prefill/128/32768/2048/8192", "tflops"), 570);
  EXPECT_EQ(number("prefill/8/8192/640/4096", "us"), 707);
  EXPECT_EQ(number("prefill/32/8192/1152/4096", "us"), 2204);
  EXPECT_EQ(number("decode_one_process/128/c128_1M/128", "us"), 772.5);
  EXPECT_EQ(number("indexer/128/2/262144", "us"), 1415.8);
  EXPECT_EQ(number("indexer/1/1/2048", "logits_us"), 3.4);
  EXPECT_EQ(number("indexer_prefill/4096/32768", "us"), 2242);
  EXPECT_EQ(number("ops/inv_rope_fp8_quant/8192", "us"), 1264.8);
  EXPECT_EQ(find_peer(peer_tables(), "decode/64/swa/3").cell, nullptr);
}

TEST(BenchPeers, BadTablesNameTheLine) {
  const auto refused = [](const std::string& body, const std::string& text) {
    try {
      (void)parse(body);
      ADD_FAILURE() << "accepted " << body;
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  EXPECT_EQ(parse("a,us\nx,2\n\n").cells.size(), 1U);
  EXPECT_EQ(parse("a,us,ours\nx,2,\"p, q\"").cells.at("t/x").ours, "p, q");
  EXPECT_TRUE(parse("# cells: other\na,us\nx,2\n").cells.contains("other/x"));
  refused("a,us\nx,2,3\n", "t:8: got 3 fields");
  refused("a,us\nx,fast\n", "t:8");
  refused("a,us\nx,-2\n", "t:8");
  refused("a,us\nx,2\nx,3\n", "t:9: got t/x a second time");
  refused("us\n1\n", "t:7");
  refused("a,b\n1,2\n", "t:7");
  refused("# ceiling speed\n", "t:7");
  EXPECT_THROW(parse_peer_table("t", "a,us\nx,1\n"), InvalidArgument);
}

TEST(BenchPeers, TimesAreScaledByTheCeilingThatBinds) {
  const Machine fast = test::gpu_report(1.02).before;
  const PeerTime bytes = peer_time(test::gpu_row("decode/64/swa/1", 10), fast, peer_tables());
  EXPECT_DOUBLE_EQ(bytes.measured, 11.5e-6);
  EXPECT_NEAR(bytes.scaled, 11.5e-6 / 1.02, 1e-12);
  Machine product = test::gpu_report().before;
  product.peaks[0].flops /= 2;
  Row heavy = test::gpu_row("decode/64/swa/1", 10);
  EXPECT_NEAR(peer_time(heavy, product, peer_tables()).scaled, 11.5e-6, 1e-12) << "its bytes bind";
  heavy.flops = 1e12;
  EXPECT_NEAR(peer_time(heavy, product, peer_tables()).scaled, 23e-6, 1e-12);
  Row prefill = test::gpu_row("prefill/64/8192/640/512", 10);
  prefill.flops = 473e12;
  EXPECT_DOUBLE_EQ(peer_time(prefill, test::gpu_report().before, peer_tables()).measured, 1.0);
  EXPECT_EQ(peer_time(test::gpu_row("nobody", 1), fast, peer_tables()).measured, 0);
  EXPECT_NEAR(ceiling_difference(peer_tables()[0], fast), 0.02 / 1.02, 1e-9);
  PeerTable product_alone = peer_tables()[0];
  std::erase_if(product_alone.ceilings, [](const auto& c) { return c.first != "product_tflops"; });
  EXPECT_NEAR(ceiling_difference(product_alone, product), 0.5, 1e-9);
  EXPECT_NEAR(peer_time(test::gpu_row("prefill/8/8192/640/4096", 10), fast, peer_tables()).scaled, 707e-6, 1e-9)
      << "bytes bind, and their ceiling is not known";
}

}  // namespace
}  // namespace smla::bench
