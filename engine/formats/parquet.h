// Parquet, through the Arrow glue: docs/formats/parquet.md.
#pragma once

#include <memory>
#include <string>

#include "engine/formats/shard_reader.h"

namespace widestream {

// Where the glue (engine/formats/arrow) lies. It is loaded when the first Parquet file is opened
// and stays loaded. Looked for: this path; else the environment variable WIDESTREAM_ARROW_GLUE;
// else libwidestream_arrow.so or libwidestream_arrow_*.so (the last by name) beside the library or
// program that holds the engine. InvalidArgument if another one is loaded already. Thread-safe.
Status SetArrowGluePath(const std::string& path);

// OpenShard for Format::kParquet. A unit is a row group. `options.text` names a leaf column, with
// dots inside structs; a column of that very name at the top comes first.
Result<std::shared_ptr<ShardReader>> OpenParquetShard(FileSystem& fs, const std::string& path,
                                                      const ReadOptions& options);

}  // namespace widestream
