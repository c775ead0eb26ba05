#include "engine/base/metrics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace widestream {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(MetricsTest, ASnapshotHoldsEveryMetricSortedByNameAndLabels) {
  MetricsRegistry registry;
  const Result<Counter*> b = registry.GetCounter("read_bytes", {{"source", "b"}});
  const Result<Counter*> a = registry.GetCounter("read_bytes", {{"source", "a"}});
  const Result<Gauge*> gauge = registry.GetGauge("buffer_bytes");
  const Result<Histogram*> histogram = registry.GetHistogram("decode_nanoseconds");
  ASSERT_TRUE(a.ok() && b.ok() && gauge.ok() && histogram.ok());
  (*b)->Add(7);
  (*b)->Add();
  (*a)->Add(1);
  (*gauge)->Set(2.5);
  (*gauge)->Add(-1.0);
  for (const std::uint64_t value : {3U, 100U, 100U}) (*histogram)->Record(value);

  const std::vector<MetricSample> samples = registry.Snapshot();
  ASSERT_EQ(samples.size(), 4U);
  EXPECT_EQ(samples[0].name, "buffer_bytes");
  EXPECT_EQ(samples[0].kind, MetricKind::kGauge);
  EXPECT_EQ(samples[0].value, 1.5);
  EXPECT_EQ(samples[1].name, "decode_nanoseconds");
  EXPECT_EQ(samples[1].kind, MetricKind::kHistogram);
  EXPECT_EQ(samples[1].count, 3U);
  EXPECT_EQ(samples[1].sum, 203U);
  EXPECT_EQ(samples[1].buckets,
            (std::vector<HistogramBucket>{{.lower_bound = 3, .upper_bound = 4, .count = 1},
                                          {.lower_bound = 96, .upper_bound = 112, .count = 2}}));
  EXPECT_EQ(samples[2].labels, (MetricLabels{{"source", "a"}}));
  EXPECT_EQ(samples[2].count, 1U);
  EXPECT_EQ(samples[3].labels, (MetricLabels{{"source", "b"}}));
  EXPECT_EQ(samples[3].kind, MetricKind::kCounter);
  EXPECT_EQ(samples[3].count, 8U);
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameMetric) {
  MetricsRegistry registry;
  const Result<Counter*> first = registry.GetCounter("n", {{"a", "1"}, {"b", "2"}});
  const Result<Counter*> second = registry.GetCounter("n", {{"b", "2"}, {"a", "1"}});
  const Result<Counter*> other = registry.GetCounter("n", {{"a", "1"}});
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_NE(*first, *other);
}

TEST(MetricsTest, BadNamesAndClashingKindsAreRefused) {
  MetricsRegistry registry;
  ASSERT_TRUE(registry.GetCounter("steps").ok());
  const Status clash = registry.GetGauge("steps", {{"a", "1"}}).status();
  EXPECT_EQ(clash.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(clash.message(), "The metric steps is a counter, not a gauge. Use another name");
  for (const char* name : {"", "9lives", "with space", "dash-ed"}) {
    EXPECT_EQ(registry.GetHistogram(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(registry.GetCounter("x", {{"bad key", "v"}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(registry.GetCounter("x", {{"k", "v"}, {"k", "w"}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(registry.Snapshot().size(), 1U);
}

TEST(MetricsTest, TheNumberOfMetricsIsBounded) {
  MetricsRegistry registry(10);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(registry.GetCounter("n", {{"i", std::to_string(i)}}).ok());
  }
  EXPECT_EQ(registry.GetCounter("m").status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(registry.GetCounter("n", {{"i", "0"}}).ok());
}

TEST(MetricsTest, BucketsCoverAllValuesAndAreAtMostAQuarterWide) {
  EXPECT_EQ(Histogram::BucketOf(kMax), Histogram::kBuckets - 1);
  EXPECT_EQ(Histogram::LowerBound(Histogram::kBuckets), kMax);
  for (std::size_t b = 0; b < Histogram::kBuckets; ++b) {
    const std::uint64_t low = Histogram::LowerBound(b);
    const std::uint64_t next = Histogram::LowerBound(b + 1);
    ASSERT_EQ(Histogram::BucketOf(low), b);
    ASSERT_EQ(Histogram::BucketOf(next - 1), b);
    ASSERT_LE(next - low, std::max<std::uint64_t>(low / 4, 1));
  }
}

RC_GTEST_PROP(MetricsTest, AValueLiesInItsBucket, (std::uint64_t value, std::uint8_t shift)) {
  const std::uint64_t scaled = value >> (shift % 64);
  const std::size_t bucket = Histogram::BucketOf(scaled);
  RC_ASSERT(bucket < Histogram::kBuckets);
  RC_ASSERT(Histogram::LowerBound(bucket) <= scaled);
  if (scaled != kMax) RC_ASSERT(scaled < Histogram::LowerBound(bucket + 1));
}

TEST(MetricsTest, QuantilesAreWithinABucketOfTheTruth) {
  MetricsRegistry registry;
  const Result<Histogram*> histogram = registry.GetHistogram("h");
  ASSERT_TRUE(histogram.ok());
  EXPECT_EQ(registry.Snapshot()[0].Quantile(0.5), 0.0);
  for (std::uint64_t value = 1; value <= 1000; ++value) (*histogram)->Record(value);
  const MetricSample sample = registry.Snapshot()[0];
  for (const double fraction : {0.01, 0.5, 0.9, 0.99}) {
    EXPECT_NEAR(sample.Quantile(fraction), 1000 * fraction, 250 * fraction + 1) << fraction;
  }
  EXPECT_GE(sample.Quantile(0.0), 1.0);
  EXPECT_LE(sample.Quantile(2.0), 1024.0);
}

TEST(MetricsTest, ConcurrentUpdatesAreAllCounted) {
  MetricsRegistry registry;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      const Result<Counter*> counter = registry.GetCounter("c");
      const Result<Gauge*> gauge = registry.GetGauge("g");
      const Result<Histogram*> histogram = registry.GetHistogram("h");
      for (std::uint64_t i = 0; i < 2000; ++i) {
        (*counter)->Add(2);
        (*gauge)->Add(1);
        (*histogram)->Record(i);
        if (i % 500 == 0) {
          EXPECT_FALSE(registry.Snapshot().empty());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<MetricSample> samples = registry.Snapshot();
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[0].count, 16000U);
  EXPECT_EQ(samples[1].value, 8000.0);
  EXPECT_EQ(samples[2].count, 8000U);
  EXPECT_EQ(samples[2].sum, 4U * (1999U * 2000U / 2));
}

}  // namespace
}  // namespace widestream
