// JSON Lines, plain, gzip or Zstandard: docs/formats/jsonl.md.
#pragma once

#include <memory>
#include <string>

#include "engine/formats/shard_reader.h"

namespace widestream {

// OpenShard for Format::kJsonl. One unit, whose records are not known before it was read.
Result<std::shared_ptr<ShardReader>> OpenJsonlShard(FileSystem& fs, const std::string& path,
                                                    const ReadOptions& options);

}  // namespace widestream
