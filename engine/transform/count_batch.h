// The token counts of many texts.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/transform/tokenizer.h"

namespace widestream {

// Tokenizer::Count of each text, on up to `threads` threads (0: one per core). The result does not
// depend on their number; an error names the first bad text by its index. Keeps nothing.
Result<std::vector<std::int64_t>> CountBatch(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             const EncodeOptions& options, unsigned threads);

}  // namespace widestream
