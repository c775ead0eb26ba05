// What bytes mean: one shard (file) as units of records. A unit is what can be permuted without
// reading it: a row group of a Parquet file, or the whole of a sequential file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

struct ShardUnit {
  std::optional<std::uint64_t> records;  // nullopt: known only at the end (sequential formats)
  std::uint64_t bytes =
      0;  // Parquet: uncompressed bytes of the used columns; else the file's bytes
  std::uint64_t first_record =
      0;  // number of its first record in the shard (0 for sequential formats)
};

// A record of a block. `text` points into the block's arena. A bad record has an empty text and
// says why; `offset` is where the user finds it (byte offset of the line, or row number).
struct RawRecord {
  std::string_view text;
  std::uint64_t offset = 0;
  std::int32_t error = -1;  // index into RecordBlock::errors, -1 = good
};

// Owns the bytes its records point to. Reusable: Clear keeps capacity.
struct RecordBlock {
  std::vector<RawRecord> records;
  std::vector<std::string>
      errors;  // e.g. "invalid JSON: ..."; without file and record, which the caller adds
  std::vector<std::shared_ptr<const void>> owners;
  std::uint64_t raw_bytes = 0;    // as counted for closing the block
  std::uint64_t next_offset = 0;  // restart offset of the block after this one in the unit
  bool end_of_unit = false;       // no record follows in the unit
  // 0: the records are text. 2 or 4: they are tokenized already, and `text` holds ids as
  // little-endian uint16 or uint32, not aligned.
  std::uint32_t id_bytes = 0;
  void Clear();
};

// Reads one unit from front to back. Not thread-safe; may be moved between threads between calls.
class UnitReader {
 public:
  virtual ~UnitReader() = default;
  // Fills `block` with the next records: it closes on reaching `records` records, or (sequential
  // formats) `bytes` raw record bytes. An empty block with end_of_unit is the end. A record longer
  // than record_bytes is bad, skipped without being buffered. A Status is a fault of the file as a
  // whole from here on (names file and offset).
  virtual Status Next(std::uint64_t records, std::uint64_t bytes, RecordBlock* block) = 0;
  // How many records lie decoded in memory, which a reader that is opened anew would have to decode
  // again. nullopt: it holds little, or could not be opened anew without reading all before.
  virtual std::optional<std::uint64_t> DecodedRecords() const { return std::nullopt; }
};

struct ReadOptions {
  std::string text = "text";  // column or key
  std::uint64_t record_bytes = 32U << 20;
};

// An open shard. Thread-safe for OpenUnit; closes its file when destroyed (a UnitReader keeps what
// it needs alive).
class ShardReader {
 public:
  virtual ~ShardReader() = default;
  virtual const std::vector<ShardUnit>& units() const = 0;
  // `offset` is 0 or a RecordBlock::next_offset of the same unit.
  virtual Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit,
                                                       std::uint64_t offset) = 0;
  // Schema as "name: type" lines, where the format has one (for inspect and messages).
  virtual std::vector<std::string> Schema() const = 0;
};

enum class Format : std::uint8_t { kParquet, kJsonl, kMegatron, kText, kWebDataset };
// As a job writes it: "parquet", "jsonl", "megatron", "text", "webdataset".
const char* FormatName(Format format);
// From the name: .parquet; .jsonl, .jsonl.gz, .jsonl.zst, .ndjson, .json lines; .idx; .txt,
// .txt.gz, .txt.zst; .tar. InvalidArgument lists what is known.
Result<Format> FormatFromName(std::string_view format_or_empty, std::string_view path);
// True if the unit counts of this format come from metadata, so that blocks are cut by count.
bool CountsAreKnown(Format format);
// True if its records are ids.
bool IsTokenized(Format format);
// The files a shard is made of, in an order: `path` alone, or the two of a Megatron data set.
std::vector<std::string> ShardFiles(Format format, const std::string& path);
Result<std::shared_ptr<ShardReader>> OpenShard(std::shared_ptr<FileSystem> fs, Format format,
                                               const std::string& path, const ReadOptions& options);

}  // namespace widestream
