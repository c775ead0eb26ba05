// Where the texts of a block live.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace widestream {

// Copies texts into chunks that it appends to `owners` (RecordBlock::owners); what it returned
// stays where it is as long as these live. Not thread-safe.
class Arena {
 public:
  explicit Arena(std::vector<std::shared_ptr<const void>>* owners) : owners_(owners) {}

  std::string_view Copy(std::string_view text) {
    if (text.empty()) return {};
    char* at = Allocate(text.size());
    std::memcpy(at, text.data(), text.size());
    return {at, text.size()};
  }
  // `size` (> 0) bytes that the caller fills; not aligned.
  char* Allocate(std::size_t size) {
    if (size > left_) {
      // Large texts get a chunk of their own size, so that little is wasted.
      const std::size_t chunk_bytes = std::max(size, kChunkBytes);
      std::shared_ptr<char[]> chunk(new char[chunk_bytes]);
      next_ = chunk.get();
      left_ = chunk_bytes;
      owners_->push_back(std::move(chunk));
    }
    char* at = next_;
    next_ += size;
    left_ -= size;
    return at;
  }

 private:
  static constexpr std::size_t kChunkBytes = 64U << 10;

  std::vector<std::shared_ptr<const void>>* const owners_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace widestream
