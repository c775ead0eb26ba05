// Finds tokens that are matched in the text as a whole, such as <|im_start|>.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace widestream::internal {

struct AddedToken {
  std::string name;
  std::uint32_t id = 0;
  bool special = true;
  // Also takes the white space before or behind it.
  bool strip_left = false;
  bool strip_right = false;
  // Found in the normalized text, not in the original.
  bool normalized = false;
};

// Finds the leftmost of a set of tokens, of those at one place the longest. Immutable and
// thread-safe. Time is linear in the text times the longest common prefix of tokens.
class TokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::uint32_t index;  // of the token
  };

  TokenMatcher() = default;
  // Names must be different and not empty.
  explicit TokenMatcher(const std::vector<std::string_view>& names);

  bool empty() const { return sorted_.empty(); }
  // From byte `from` on; only tokens for which wanted(index) is true.
  std::optional<Match> Find(std::string_view text, std::size_t from,
                            const std::function<bool(std::uint32_t)>& wanted) const;

 private:
  std::optional<Match> MatchAt(std::string_view text, std::size_t at,
                               const std::function<bool(std::uint32_t)>& wanted) const;

  struct Name {
    std::string text;
    std::uint32_t index;
  };
  std::vector<Name> sorted_;
  bool first_bytes_[256] = {};
  int only_first_byte_ = -1;
};

}  // namespace widestream::internal
