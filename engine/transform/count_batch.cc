#include "engine/transform/count_batch.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <system_error>
#include <thread>

namespace widestream {
namespace {

// Texts that a thread takes at a time: enough that taking them costs nothing, few enough that the
// threads end together.
constexpr std::size_t kTakenTexts = 64;

}  // namespace

Result<std::vector<std::int64_t>> CountBatch(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             const EncodeOptions& options, unsigned threads) {
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::int64_t> counts(texts.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&](std::size_t* failed_text, Status* failure) {
    for (;;) {
      const std::size_t begin = next.fetch_add(kTakenTexts, std::memory_order_relaxed);
      if (begin >= texts.size()) return;
      const std::size_t end = std::min(texts.size(), begin + kTakenTexts);
      std::vector<std::uint64_t> taken;
      if (tokenizer.CountBatch(texts.subspan(begin, end - begin), options, &taken).ok()) {
        std::copy(taken.begin(), taken.end(), counts.begin() + static_cast<std::ptrdiff_t>(begin));
        continue;
      }
      // Which one it was.
      for (std::size_t i = begin; i < end; ++i) {
        const Result<std::uint64_t> count = tokenizer.Count(texts[i], options);
        if (!count.ok() && i < *failed_text) {
          *failed_text = i;
          *failure = count.status();
        }
      }
    }
  };
  const std::size_t useful = (texts.size() + kTakenTexts - 1) / kTakenTexts;
  const std::size_t helpers = std::min<std::size_t>(threads, std::max<std::size_t>(useful, 1)) - 1;
  std::vector<std::size_t> failed_texts(helpers + 1, texts.size());
  std::vector<Status> failures(helpers + 1);
  std::vector<std::thread> running;
  running.reserve(helpers);
  for (std::size_t k = 0; k < helpers; ++k) {
    try {
      running.emplace_back(work, &failed_texts[k + 1], &failures[k + 1]);
    } catch (const std::system_error&) {
      break;  // The system refuses more threads: those that run, and this one, do the work.
    }
  }
  work(failed_texts.data(), failures.data());
  for (std::thread& thread : running) thread.join();
  const auto first = std::min_element(failed_texts.begin(), failed_texts.end());
  if (*first < texts.size()) {
    return failures[static_cast<std::size_t>(first - failed_texts.begin())].WithContext(
        "text " + std::to_string(*first));
  }
  return counts;
}

}  // namespace widestream
