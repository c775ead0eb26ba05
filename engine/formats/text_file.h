// Plain text: one file is one document. docs/formats/text.md.
#pragma once

#include <memory>
#include <string>

#include "engine/formats/shard_reader.h"

namespace widestream {

// OpenShard for Format::kText: one unit of one record, plain, gzip or Zstandard by its name. A file
// that is longer than record_bytes, is not UTF-8, or whose compression is broken is a bad record. A
// byte order mark at the beginning is no text. Memory: the file's text, at most record_bytes, and
// the decompressor's. `options.text` is not used.
Result<std::shared_ptr<ShardReader>> OpenTextShard(FileSystem& fs, const std::string& path,
                                                   const ReadOptions& options);

}  // namespace widestream
