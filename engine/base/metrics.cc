#include "engine/base/metrics.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

bool IsIdentifier(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

const char* KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "unknown kind";
}

Status CheckNames(std::string_view name, const MetricLabels& sorted_labels) {
  if (!IsIdentifier(name)) {
    return Status::InvalidArgument(
        StrCat("The metric name ", Quoted(name), " must be of the form [a-zA-Z_][a-zA-Z0-9_]*"));
  }
  for (std::size_t i = 0; i < sorted_labels.size(); ++i) {
    const std::string& key = sorted_labels[i].first;
    if (!IsIdentifier(key)) {
      return Status::InvalidArgument(StrCat("The label key ", Quoted(key), " of the metric ", name,
                                            " must be of the form [a-zA-Z_][a-zA-Z0-9_]*"));
    }
    if (i > 0 && key == sorted_labels[i - 1].first) {
      return Status::InvalidArgument(
          StrCat("The label key ", Quoted(key), " of the metric ", name, " is given twice"));
    }
  }
  return Status::Ok();
}

}  // namespace

std::size_t Histogram::BucketOf(std::uint64_t value) {
  if (value < 4) return value;
  // The position of the highest bit gives the doubling, the two bits below it the quarter.
  const int exponent = std::bit_width(value) - 1;
  const std::uint64_t quarter = (value >> (exponent - 2)) & 3;
  return static_cast<std::size_t>(4 * (exponent - 1)) + quarter;
}

std::uint64_t Histogram::LowerBound(std::size_t bucket) {
  if (bucket < 4) return bucket;
  if (bucket >= kBuckets) return std::numeric_limits<std::uint64_t>::max();
  return (4 + std::uint64_t{bucket % 4}) << (bucket / 4 - 1);
}

double MetricSample::Quantile(double fraction) const {
  const double rank = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(count);
  double below = 0;
  for (const HistogramBucket& bucket : buckets) {
    const double inside = static_cast<double>(bucket.count);
    if (below + inside >= rank) {
      const double low = static_cast<double>(bucket.lower_bound);
      const double width = static_cast<double>(bucket.upper_bound - bucket.lower_bound);
      return low + width * (rank - below) / inside;
    }
    below += inside;
  }
  return 0;
}

Result<MetricsRegistry::Entry*> MetricsRegistry::GetEntry(std::string_view name,
                                                          MetricLabels labels, MetricKind kind) {
  std::sort(labels.begin(), labels.end());
  WS_RETURN_IF_ERROR(CheckNames(name, labels));
  const MutexLock lock(mutex_);
  auto family = families_.find(name);
  if (family != families_.end()) {
    if (family->second.kind != kind) {
      return Status::InvalidArgument(StrCat("The metric ", name, " is a ",
                                            KindName(family->second.kind), ", not a ",
                                            KindName(kind), ". Use another name"));
    }
    const auto entry = family->second.entries.find(labels);
    if (entry != family->second.entries.end()) return &entry->second;
  }
  if (size_ >= max_metrics_) {
    return Status::ResourceExhausted(StrCat("The metric ", name, " cannot be added: there are ",
                                            size_, " metrics already. Use fewer label values"));
  }
  if (family == families_.end()) {
    family = families_.emplace(std::string(name), Family{.kind = kind, .entries = {}}).first;
  }
  Entry& entry = family->second.entries[std::move(labels)];
  switch (kind) {
    case MetricKind::kCounter:
      entry.counter = std::make_unique<Counter>();
      break;
    case MetricKind::kGauge:
      entry.gauge = std::make_unique<Gauge>();
      break;
    case MetricKind::kHistogram:
      entry.histogram = std::make_unique<Histogram>();
      break;
  }
  ++size_;
  return &entry;
}

Result<Counter*> MetricsRegistry::GetCounter(std::string_view name, MetricLabels labels) {
  WS_ASSIGN_OR_RETURN(const Entry* entry, GetEntry(name, std::move(labels), MetricKind::kCounter));
  return entry->counter.get();
}

Result<Gauge*> MetricsRegistry::GetGauge(std::string_view name, MetricLabels labels) {
  WS_ASSIGN_OR_RETURN(const Entry* entry, GetEntry(name, std::move(labels), MetricKind::kGauge));
  return entry->gauge.get();
}

Result<Histogram*> MetricsRegistry::GetHistogram(std::string_view name, MetricLabels labels) {
  WS_ASSIGN_OR_RETURN(const Entry* entry,
                      GetEntry(name, std::move(labels), MetricKind::kHistogram));
  return entry->histogram.get();
}

std::vector<MetricSample> MetricsRegistry::Snapshot() const {
  std::vector<MetricSample> samples;
  const MutexLock lock(mutex_);
  samples.reserve(size_);
  for (const auto& [name, family] : families_) {
    for (const auto& [labels, entry] : family.entries) {
      MetricSample& sample = samples.emplace_back();
      sample.name = name;
      sample.labels = labels;
      sample.kind = family.kind;
      if (entry.counter != nullptr) sample.count = entry.counter->value();
      if (entry.gauge != nullptr) sample.value = entry.gauge->value();
      if (entry.histogram == nullptr) continue;
      sample.sum = entry.histogram->sum_.load(std::memory_order_relaxed);
      for (std::size_t b = 0; b < Histogram::kBuckets; ++b) {
        const std::uint64_t count = entry.histogram->counts_[b].load(std::memory_order_relaxed);
        if (count == 0) continue;
        sample.count += count;
        sample.buckets.push_back({.lower_bound = Histogram::LowerBound(b),
                                  .upper_bound = Histogram::LowerBound(b + 1),
                                  .count = count});
      }
    }
  }
  return samples;
}

}  // namespace widestream
