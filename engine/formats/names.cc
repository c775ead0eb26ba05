#include "engine/formats/names.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace widestream {
namespace {

constexpr std::size_t kShownBytes = 64;

// Levenshtein distance.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string QuoteName(std::string_view name) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "'";
  for (const char c : name.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += c;
    } else {
      quoted += "\\x";
      quoted += kDigits[byte >> 4];
      quoted += kDigits[byte & 15];
    }
  }
  return quoted + (name.size() > kShownBytes ? "...'" : "'");
}

std::string NearestName(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t best = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 256 || name.size() > 256) continue;
    const std::size_t distance = EditDistance(name, candidate);
    const std::size_t longer = std::max(name.size(), candidate.size());
    if (distance * 3 <= longer + 2 && distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace widestream
