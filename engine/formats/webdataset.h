// WebDataset: tar files whose members, by the first part of their names, make samples.
// docs/formats/webdataset.md.
#pragma once

#include <memory>
#include <string>

#include "engine/formats/shard_reader.h"

namespace widestream {

// OpenShard for Format::kWebDataset: one unit. A record is the text of a sample, the member that
// `options.text` names ("txt"; "text", the default, is either; "json.meta.title" is a field of the
// JSON member). Only headers and that member are read. The restart offset is where the first header
// of the next sample begins.
Result<std::shared_ptr<ShardReader>> OpenWebDatasetShard(FileSystem& fs, const std::string& path,
                                                         const ReadOptions& options);

}  // namespace widestream
