#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench_compare.h"
#include "report.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using test::gpu_report;
using test::gpu_row;

BenchReport three_rows(double speed = 1) {
  BenchReport report = gpu_report(speed);
  report.rows = {gpu_row("decode/64/swa/1", 10), gpu_row("decode/64/swa/32", 12.7),
                 gpu_row("decode/128/swa/256", 93.8)};
  return report;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(BenchReports, SummariesByGrid) {
  const std::vector<PeerSummary> all = three_rows().peer_summaries();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].cells, "decode/64");
  EXPECT_NEAR(all[0].mean, std::sqrt(1.15), 1e-3);
  EXPECT_NEAR(all[0].worst, 1.0, 1e-3);
  EXPECT_EQ(all[0].worst_cell, "decode/64/swa/32");
  EXPECT_NEAR(all[1].mean, 0.5, 1e-3);
  EXPECT_EQ(all[2].cells, "decode/*");
  EXPECT_EQ(all[2].count, 3);
  EXPECT_EQ(all[3].cells, "decode/* up to 16");
  EXPECT_NEAR(all[3].mean, 1.15, 1e-3);
}

TEST(BenchReports, AWrongRowHasNoRatioAndIsNotCounted) {
  BenchReport report = three_rows();
  report.rows[1].check.failure = "l2 is over 0.004";
  EXPECT_EQ(report.wrong(), 1);
  const std::string table = bench_table(report);
  EXPECT_EQ(count(table, "WRONG: l2 is over 0.004"), 1U);
  EXPECT_NE(table.find("1 of 3 rows are WRONG"), std::string::npos);
  EXPECT_EQ(count(table, "1.00x  "), 0U) << table;
  EXPECT_EQ(gpu_numbers(report.rows[1], report.ceilings()).ratio, 0);
  EXPECT_EQ(report.peer_summaries()[0].count, 1);
  EXPECT_EQ(report.peer_summaries()[0].wrong, 1);
  EXPECT_NE(bench_csv(report).find("WRONG: l2"), std::string::npos);
}

TEST(BenchReports, EveryCsvLineHasTheHeadersFields) {
  BenchReport report = three_rows();
  report.rows[2].skipped = "needs 3 GB, 2 GB are free";
  const std::string csv = bench_csv(report);
  std::size_t commas = 0;
  std::size_t lines = 0;
  for (std::size_t at = 0; at < csv.size(); at = csv.find('\n', at) + 1, ++lines) {
    std::size_t n = 0;
    bool quoted = false;
    for (std::size_t i = at; csv[i] != '\n'; ++i) {
      if (csv[i] == '"') quoted = !quoted;
      n += csv[i] == ',' && !quoted ? 1 : 0;
    }
    if (lines == 0) commas = n;
    EXPECT_EQ(n, commas) << csv.substr(at, csv.find('\n', at) - at);
  }
  EXPECT_EQ(lines, 1U + 2 + 3 + 3 + 3);  // header, products, bandwidths, times of nothing, rows
}

TEST(BenchReports, JsonComesBack) {
  BenchReport report = three_rows();
  report.rows[1].check.failure = "no";
  report.rows[2].skipped = "too large";
  report.after.peaks[0].flops *= 0.99;
  const std::string text = bench_json(report);
  const BenchReport back = parse_report("file", text);
  EXPECT_TRUE(back.on_gpu());
  EXPECT_EQ(back.rows.size(), 3U);
  EXPECT_EQ(back.wrong(), 1);
  EXPECT_EQ(back.rows[1].check.failure, "no");
  EXPECT_EQ(back.rows[2].skipped, "too large");
  EXPECT_NEAR(back.drift(), 0.01, 1e-9);
  EXPECT_NEAR(back.rows[0].time.median, 10e-6, 1e-12);
  EXPECT_EQ(back.rows[0].traffic, bench::Traffic::kGather);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["device"], "a GPU");
  EXPECT_EQ(json["command"], "smla bench");
  EXPECT_NEAR(json["rows"][0]["peer_ratio"].get<double>(), 1.15, 1e-9);
  EXPECT_FALSE(json["rows"][1].contains("peer_ratio")) << "a wrong row";
  EXPECT_NEAR(json["rows"][0]["over_floor"].get<double>(), 1.0, 1e-9);
}

TEST(BenchCompare, RatiosAreScaledByCeilings) {
  BenchReport b = three_rows(1.04);
  for (bench::Row& row : b.rows) row.time.median /= 1.04;
  const BenchComparison same = compare_reports(three_rows(), b);
  EXPECT_TRUE(same.void_because.empty());
  ASSERT_EQ(same.rows.size(), 3U);
  for (const ComparedRow& row : same.rows) EXPECT_NEAR(row.ratio, 1, 1e-9) << row.name;
  b.rows[0].time.median /= 2;
  EXPECT_NEAR(compare_reports(three_rows(), b).mean, std::cbrt(2.0), 1e-9);
}

TEST(BenchCompare, VoidWhenCeilingsDiffer) {
  const BenchComparison far = compare_reports(three_rows(), three_rows(1.06));
  EXPECT_EQ(far.void_because.size(), 3U);
  EXPECT_EQ(comparison_table(far).find("VOID"), 0U);
  BenchReport moved = three_rows();
  moved.after.bandwidths[0].flops *= 0.9;
  EXPECT_EQ(compare_reports(three_rows(), moved).void_because.size(), 1U);
  EXPECT_TRUE(compare_reports(three_rows(), three_rows(1.04)).void_because.empty());
}

TEST(BenchCompare, WrongSkippedAndMissingRowsAreLeftOut) {
  BenchReport a = three_rows();
  BenchReport b = three_rows();
  a.rows[0].check.failure = "no";
  b.rows[1].skipped = "large";
  b.rows[2].shape = "another";
  const BenchComparison c = compare_reports(a, b);
  EXPECT_TRUE(c.rows.empty());
  EXPECT_EQ(c.left_out.size(), 4U);
  EXPECT_EQ(c.mean, 0);
  EXPECT_NE(comparison_table(c).find("WRONG: no"), std::string::npos);
}

TEST(BenchCompare, BesidePeers) {
  bool voided = true;
  const std::string table = peers_table(three_rows(), voided);
  EXPECT_FALSE(voided);
  EXPECT_NE(table.find("1.15x"), std::string::npos) << table;
  EXPECT_NE(peers_table(three_rows(1.2), voided).find("VOID"), std::string::npos);
  EXPECT_TRUE(voided);
  BenchReport cpu;
  EXPECT_THROW(peers_table(cpu, voided), InvalidArgument);
}

TEST(BenchCompare, BadFilesAreNamed) {
  const std::string good = bench_json(three_rows());
  const auto refused = [](const std::string& text) {
    try {
      (void)parse_report("some.json", text);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("some.json"), std::string::npos) << e.what();
    }
  };
  refused("");
  refused("[]");
  refused("{}");
  refused(good.substr(0, good.size() / 2));
  for (const char* key : {"format", "machine", "rows", "model"}) {
    auto json = nlohmann::json::parse(good);
    json.erase(key);
    refused(json.dump());
    json[key] = 3;
    refused(json.dump());
  }
  auto json = nlohmann::json::parse(good);
  json["rows"][0]["median_ms"] = 0;
  refused(json.dump());
}

}  // namespace
}  // namespace smla
