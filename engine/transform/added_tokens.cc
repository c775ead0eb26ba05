#include "engine/transform/added_tokens.h"

#include <algorithm>
#include <cstring>

namespace widestream::internal {

TokenMatcher::TokenMatcher(const std::vector<std::string_view>& names) {
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    sorted_.push_back({std::string(names[i]), i});
    first_bytes_[static_cast<unsigned char>(names[i][0])] = true;
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [](const Name& a, const Name& b) { return a.text < b.text; });
  if (std::count(std::begin(first_bytes_), std::end(first_bytes_), true) == 1) {
    only_first_byte_ = static_cast<unsigned char>(names[0][0]);
  }
}

std::optional<TokenMatcher::Match> TokenMatcher::MatchAt(
    std::string_view text, std::size_t at, const std::function<bool(std::uint32_t)>& wanted) const {
  // [begin, end) are the names that start with the `length` bytes at `at`.
  auto begin = sorted_.begin();
  auto end = sorted_.end();
  std::optional<Match> longest;
  for (std::size_t length = 0; begin != end; ++length) {
    if (begin->text.size() == length) {
      if (wanted(begin->index)) longest = Match{at, at + length, begin->index};
      ++begin;
    }
    if (at + length >= text.size()) break;
    const auto next = static_cast<unsigned char>(text[at + length]);
    const auto byte = [length](const Name& name) {
      return static_cast<unsigned char>(name.text[length]);
    };
    begin = std::lower_bound(begin, end, next,
                             [&](const Name& name, unsigned char b) { return byte(name) < b; });
    end = std::upper_bound(begin, end, next,
                           [&](unsigned char b, const Name& name) { return b < byte(name); });
  }
  return longest;
}

std::optional<TokenMatcher::Match> TokenMatcher::Find(
    std::string_view text, std::size_t from,
    const std::function<bool(std::uint32_t)>& wanted) const {
  if (sorted_.empty()) return std::nullopt;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (only_first_byte_ >= 0) {
      const void* const found = std::memchr(text.data() + at, only_first_byte_, text.size() - at);
      if (found == nullptr) return std::nullopt;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    } else if (!first_bytes_[static_cast<unsigned char>(text[at])]) {
      continue;
    }
    if (const std::optional<Match> match = MatchAt(text, at, wanted)) return match;
  }
  return std::nullopt;
}

}  // namespace widestream::internal
