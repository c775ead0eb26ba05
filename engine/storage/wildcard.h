// Wildcard matching of one name, for Glob and for fault scripts.
#pragma once

#include <string_view>

namespace widestream {

// True if all of `name` matches `pattern`: `*` any run of bytes, `?` one byte, `[abc]`, `[a-z]`,
// `[!x]` one byte of a set; "/" is an ordinary byte here. A "[" that is never closed is itself.
// Time is at most |pattern| * |name|.
bool WildcardMatch(std::string_view pattern, std::string_view name);

}  // namespace widestream
