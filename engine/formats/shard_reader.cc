#include "engine/formats/shard_reader.h"

#include <algorithm>
#include <utility>

#include "engine/formats/jsonl.h"
#include "engine/formats/megatron.h"
#include "engine/formats/names.h"
#include "engine/formats/parquet.h"
#include "engine/formats/text_file.h"
#include "engine/formats/webdataset.h"

namespace widestream {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

constexpr std::pair<const char*, Format> kFormats[] = {{"parquet", Format::kParquet},
                                                       {"jsonl", Format::kJsonl},
                                                       {"megatron", Format::kMegatron},
                                                       {"text", Format::kText},
                                                       {"webdataset", Format::kWebDataset}};

}  // namespace

void RecordBlock::Clear() {
  records.clear();
  errors.clear();
  owners.clear();
  raw_bytes = 0;
  next_offset = 0;
  end_of_unit = false;
  id_bytes = 0;
}

const char* FormatName(Format format) {
  for (const auto& [name, known] : kFormats) {
    if (known == format) return name;
  }
  return "";  // not reached: every format is in the table
}

Result<Format> FormatFromName(std::string_view format_or_empty, std::string_view path) {
  std::string name = Lower(path);
  for (const auto& [known, format] : kFormats) {
    if (format_or_empty != known) continue;
    if (format == Format::kMegatron && !name.ends_with(".idx") && !name.ends_with(".bin")) {
      return Status::InvalidArgument("'" + std::string(path) +
                                     "': a Megatron data set is PREFIX.idx with PREFIX.bin; name "
                                     "one of the two");
    }
    return format;
  }
  if (!format_or_empty.empty()) {
    return Status::InvalidArgument(
        "the format " + QuoteName(format_or_empty) +
        " is not known; write 'parquet', 'jsonl', 'megatron', 'text' or 'webdataset'");
  }
  for (const std::string_view suffix : {".tgz", ".tar.gz", ".tar.zst", ".tar.zstd"}) {
    if (name.ends_with(suffix)) return Format::kWebDataset;  // which says why it cannot be read
  }
  for (const std::string_view suffix : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(suffix)) {
      name.resize(name.size() - suffix.size());
      if (name.ends_with(".parquet")) {
        return Status::InvalidArgument("'" + std::string(path) +
                                       "': a Parquet file is compressed inside; unpack it first");
      }
      if (name.ends_with(".idx") || name.ends_with(".tar")) name.clear();
      break;
    }
  }
  if (name.ends_with(".parquet")) return Format::kParquet;
  for (const std::string_view suffix : {".jsonl", ".ndjson", ".json"}) {
    if (name.ends_with(suffix)) return Format::kJsonl;
  }
  if (name.ends_with(".idx")) return Format::kMegatron;
  if (name.ends_with(".txt")) return Format::kText;
  if (name.ends_with(".tar")) return Format::kWebDataset;
  return Status::InvalidArgument(
      "the format of '" + std::string(path) +
      "' cannot be told from its name; known are .parquet and .jsonl, .ndjson, .json (lines), "
      "these three and .txt also with .gz or .zst, .idx (Megatron) and .tar (WebDataset): rename "
      "it or set `format: parquet`, `jsonl`, `text`, `megatron` or `webdataset`");
}

bool CountsAreKnown(Format format) {
  return format == Format::kParquet || format == Format::kMegatron;
}

bool IsTokenized(Format format) { return format == Format::kMegatron; }

std::vector<std::string> ShardFiles(Format format, const std::string& path) {
  if (format != Format::kMegatron) return {path};
  return {MegatronIndexPath(path), MegatronDataPath(path)};
}

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
    case Format::kMegatron:
      return OpenMegatronShard(*fs, path, options);
    case Format::kText:
      return OpenTextShard(*fs, path, options);
    case Format::kWebDataset:
      return OpenWebDatasetShard(*fs, path, options);
  }
  return Status::Internal("no reader for this format");
}

}  // namespace widestream
