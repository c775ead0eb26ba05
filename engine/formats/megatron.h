// Reading Megatron's indexed data sets (PREFIX.idx and PREFIX.bin): docs/formats/megatron.md.
#pragma once

#include <memory>
#include <string>

#include "engine/formats/shard_reader.h"

namespace widestream {

// The two files of a data set, from the path of either.
std::string MegatronIndexPath(const std::string& path);
std::string MegatronDataPath(const std::string& path);

// OpenShard for Format::kMegatron; `path` is that of either file. A record is a document, given as
// ids (RecordBlock::id_bytes). The index is read by ranges as it is needed, never as a whole, and
// every place and length in it is checked before it is used. A unit is a stretch of documents whose
// restart offset is a number of documents; a block also closes on its bytes, so that memory does
// not depend on how long documents are. `options.text` is not used.
Result<std::shared_ptr<ShardReader>> OpenMegatronShard(FileSystem& fs, const std::string& path,
                                                       const ReadOptions& options);

}  // namespace widestream
