// Names of keys and columns in messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace widestream {

// The name in quotes, cut at 64 bytes; bytes that are not printable ASCII as \xNN. Names come
// from files: a message must not carry control characters to a terminal.
std::string QuoteName(std::string_view name);

// The candidate with the smallest edit distance to `name`, or "" if none is near (more than a third
// of the longer name differs).
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace widestream
