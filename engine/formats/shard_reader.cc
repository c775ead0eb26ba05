#include "engine/formats/shard_reader.h"

#include <algorithm>

#include "engine/formats/jsonl.h"
#include "engine/formats/names.h"
#include "engine/formats/parquet.h"

namespace widestream {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

}  // namespace

void RecordBlock::Clear() {
  records.clear();
  errors.clear();
  owners.clear();
  raw_bytes = 0;
  next_offset = 0;
  end_of_unit = false;
}

Result<Format> FormatFromName(std::string_view format_or_empty, std::string_view path) {
  if (format_or_empty == "parquet") return Format::kParquet;
  if (format_or_empty == "jsonl") return Format::kJsonl;
  if (!format_or_empty.empty()) {
    return Status::InvalidArgument("the format " + QuoteName(format_or_empty) +
                                   " is not known; write 'parquet' or 'jsonl'");
  }
  std::string name = Lower(path);
  for (const std::string_view suffix : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(suffix)) {
      name.resize(name.size() - suffix.size());
      if (name.ends_with(".parquet")) {
        return Status::InvalidArgument("'" + std::string(path) +
                                       "': a Parquet file is compressed inside; unpack it first");
      }
      break;
    }
  }
  if (name.ends_with(".parquet")) return Format::kParquet;
  for (const std::string_view suffix : {".jsonl", ".ndjson", ".json"}) {
    if (name.ends_with(suffix)) return Format::kJsonl;
  }
  return Status::InvalidArgument(
      "the format of '" + std::string(path) +
      "' cannot be told from its name; known are .parquet and .jsonl, .ndjson, .json (lines), "
      "these three also with .gz or .zst: rename it or set `format: parquet` or `format: jsonl`");
}

bool CountsAreKnown(Format format) { return format == Format::kParquet; }

// By value: a reader of an object store will keep it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Result<std::shared_ptr<ShardReader>> OpenShard(std::shared_ptr<FileSystem> fs, Format format,
                                               const std::string& path,
                                               const ReadOptions& options) {
  switch (format) {
    case Format::kJsonl:
      return OpenJsonlShard(*fs, path, options);
    case Format::kParquet:
      return OpenParquetShard(*fs, path, options);
  }
  return Status::Internal("no reader for this format");
}

}  // namespace widestream
