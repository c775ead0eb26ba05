// Counters, gauges and histograms with names and labels, kept in a registry object. There is no
// global registry: whoever owns a job owns its metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"

namespace widestream {

// Only grows. Thread-safe, wait-free.
class Counter {
 public:
  void Add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

// Goes up and down. Thread-safe.
class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

// Counts whole numbers (nanoseconds, bytes, tokens) in buckets of logarithmic width: 0 to 3 have a
// bucket each, and each doubling above has four of equal width, so a bucket is at most 25 % wide.
// Thread-safe, wait-free; about 2 KB.
class Histogram {
 public:
  // Bucket b holds LowerBound(b) <= value < LowerBound(b + 1); the last is unbounded.
  static constexpr std::size_t kBuckets = 252;
  [[nodiscard]] static std::size_t BucketOf(std::uint64_t value);
  [[nodiscard]] static std::uint64_t LowerBound(std::size_t bucket);

  void Record(std::uint64_t value) {
    counts_[BucketOf(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

 private:
  friend class MetricsRegistry;
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_ = 0;
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

enum class MetricKind : std::uint8_t { kCounter, kGauge, kHistogram };

struct HistogramBucket {
  std::uint64_t lower_bound = 0;  // Inclusive.
  std::uint64_t upper_bound = 0;  // Exclusive; the greatest u64 stands for no bound.
  std::uint64_t count = 0;

  friend bool operator==(const HistogramBucket&, const HistogramBucket&) = default;
};

// One metric at the time of a snapshot.
struct MetricSample {
  std::string name;
  MetricLabels labels;  // Sorted by key.
  MetricKind kind = MetricKind::kCounter;
  std::uint64_t count = 0;               // A counter's value; a histogram's number of records.
  double value = 0;                      // A gauge's value.
  std::uint64_t sum = 0;                 // A histogram's sum of records, modulo 2^64.
  std::vector<HistogramBucket> buckets;  // A histogram's buckets that hold any, in order.

  // A histogram's value below which a `fraction` (0 to 1) of the records lie, interpolated in its
  // bucket; 0 without records.
  [[nodiscard]] double Quantile(double fraction) const;
};

// Thread-safe. Owns its metrics; the pointers that it returns stay valid for as long as it lives.
// Ask for a metric once and keep the pointer: updates then cost one atomic addition and no lock.
class MetricsRegistry {
 public:
  // At most `max_metrics` pairs of name and labels, because labels may come from data.
  explicit MetricsRegistry(std::size_t max_metrics = 100'000) : max_metrics_(max_metrics) {}
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The metric of this name and these labels (in any order), made at the first call.
  // InvalidArgument if the name or a label's key is not [a-zA-Z_][a-zA-Z0-9_]*, a key comes twice,
  // or the name is of another kind already; ResourceExhausted beyond the maximum.
  [[nodiscard]] Result<Counter*> GetCounter(std::string_view name, MetricLabels labels = {});
  [[nodiscard]] Result<Gauge*> GetGauge(std::string_view name, MetricLabels labels = {});
  [[nodiscard]] Result<Histogram*> GetHistogram(std::string_view name, MetricLabels labels = {});

  // All metrics, sorted by name and labels. Updates meanwhile may or may not be seen; a histogram's
  // count is always the sum of its buckets.
  [[nodiscard]] std::vector<MetricSample> Snapshot() const WS_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    MetricKind kind = MetricKind::kCounter;
    std::map<MetricLabels, Entry> entries;
  };

  Result<Entry*> GetEntry(std::string_view name, MetricLabels labels, MetricKind kind)
      WS_EXCLUDES(mutex_);

  const std::size_t max_metrics_;
  mutable Mutex mutex_;
  std::map<std::string, Family, std::less<>> families_ WS_GUARDED_BY(mutex_);
  std::size_t size_ WS_GUARDED_BY(mutex_) = 0;
};

}  // namespace widestream
