// Order v1 of a source: which record stands at which place (docs/stream.md section 1), walked block
// by block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/permutation.h"
#include "engine/base/status.h"
#include "engine/formats/shard_reader.h"
#include "engine/job/spec.h"
#include "engine/source/manifest.h"
#include "engine/source/messages.h"

namespace widestream {

struct UnitRef {
  std::uint32_t shard = 0;
  std::uint32_t unit = 0;  // in the shard
  ShardUnit info;
};

// The id by which a source keys its randomness: xxh3-64 of its name.
std::uint64_t SourceIdOf(const std::string& name);

// The permutation of the units of an epoch; identity when the source is not shuffled or
// has none.
class UnitOrder {
 public:
  UnitOrder(const ShuffleSpec& shuffle, std::uint64_t seed, std::uint64_t source_id,
            std::uint64_t epoch, std::uint64_t units);
  std::uint64_t At(std::uint64_t place) const {
    return permutation_ ? permutation_->At(place) : place;
  }

 private:
  std::optional<Permutation> permutation_;
};

// A block as read. `order[i]` is the index in `block.records` of the record at place
// restart.position + i.
struct RawBlock {
  RestartPoint restart;
  std::uint32_t shard = 0;
  RecordBlock block;
  std::vector<std::uint32_t> order;
  bool end_of_epoch = false;     // an empty block: the place after the last record
  bool next_is_decoded = false;  // the block after this one is in the reader's memory as a whole
};

// Reads a source in order, one block a call. Not thread-safe; may move between threads between
// calls. Holds at most one open shard and one block; every shard is checked against the manifest
// when it is opened.
class BlockReader {
 public:
  // Opens every shard of a format whose counts are in its metadata, to read them. The shards of
  // other formats are opened when their turn comes.
  static Result<std::unique_ptr<BlockReader>> Make(std::shared_ptr<FileSystem> fs,
                                                   const SourceSpec& source, std::uint64_t seed,
                                                   std::uint64_t record_bytes, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  const std::vector<UnitRef>& units() const { return units_; }
  // Records of an epoch where metadata says it.
  std::optional<std::uint64_t> records() const;

  // Goes to a block's beginning. InvalidArgument if the point cannot be in this source.
  Status Seek(const RestartPoint& point);
  // The next block; after an end-of-epoch block the first block of the next epoch.
  Result<RawBlock> Next();
  // Frees what is decoded, where a format holds much of it; Next reads on where it was.
  void Shrink();

 private:
  BlockReader(std::shared_ptr<FileSystem> fs, SourceSpec source, std::uint64_t seed,
              std::uint64_t record_bytes, Manifest manifest);
  Result<std::shared_ptr<ShardReader>> Open(std::uint32_t shard);
  std::uint64_t BlockRecords(const UnitRef& unit) const;

  std::shared_ptr<FileSystem> fs_;
  SourceSpec source_;
  std::uint64_t seed_;
  std::uint64_t source_id_;
  std::uint64_t record_bytes_;
  Manifest manifest_;
  std::vector<UnitRef> units_;
  RestartPoint at_;  // of the block that Next returns
  std::unique_ptr<UnitReader> unit_reader_;
  // The shard opened last, so that its row groups in a row check and open it once.
  std::optional<std::uint32_t> open_shard_;
  std::shared_ptr<ShardReader> shard_reader_;
};

}  // namespace widestream
