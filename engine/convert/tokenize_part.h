// TokenizePart: one shard on its way to ids, and the files that keep what is done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/convert/tokenize.h"
#include "engine/formats/megatron_writer.h"
#include "engine/formats/shard_reader.h"
#include "engine/source/manifest.h"

namespace widestream::internal {

// A place between two blocks of a shard, and what stands before it.
struct PartState {
  std::uint64_t unit = 0;    // the next block's
  std::uint64_t offset = 0;  // and its restart offset there
  std::uint64_t ids_bytes = 0;
  TokenizeCounts counts;
  bool done = false;
};

// A block after encoding, ready to be written.
struct EncodedBlock {
  std::string ids;                    // as they lie in the .bin file
  std::vector<std::int32_t> lengths;  // of its documents
  PartState after;                    // unit, offset and done only
  TokenizeCounts counts;              // of this block
  Status failure;                     // why the work must stop here
  std::string bad_record;             // the first one that was left out
};

// Reading and writing are for one thread at a time each; both may go on at once.
class TokenizePart {
 public:
  TokenizePart(std::shared_ptr<FileSystem> fs, const ShardEntry& shard, Format format,
               const TokenizeOptions& options, const std::string& folder, std::size_t number);

  // Reads the checkpoint, if there is one, and cuts the files to it.
  Status Restore();

  // The next block, and the place after it. `*records_before` is the number of its first record.
  Status Read(RecordBlock* block, PartState* after, std::uint64_t* first_record);
  // Encodes a block that Read gave; thread-safe.
  EncodedBlock Encode(const TextEncoder& encoder, MegatronIdType type, const RecordBlock& block,
                      const PartState& after, std::uint64_t first_record) const;
  // Appends a block to the files, and a checkpoint when it is time or the shard is done.
  Status Write(const EncodedBlock& block);

  const PartState& state() const { return state_; }  // of what is written
  const std::string& ids_path() const { return ids_path_; }
  const std::string& lengths_path() const { return lengths_path_; }
  std::uint64_t size_bytes() const { return shard_.size_bytes; }
  // Bytes of the shard before a place, as far as is known without reading.
  std::uint64_t BytesBefore(const PartState& state) const;

 private:
  Status OpenFiles();
  Status Checkpoint();
  Status Forget();

  const std::shared_ptr<FileSystem> fs_;
  const ShardEntry shard_;
  const Format format_;
  const TokenizeOptions& options_;
  const std::string ids_path_;
  const std::string lengths_path_;
  const std::string state_path_;

  // The reader's.
  std::shared_ptr<ShardReader> reader_;
  std::unique_ptr<UnitReader> unit_reader_;
  PartState read_;
  std::uint64_t records_read_ = 0;

  // The writer's.
  PartState state_;
  std::uint64_t checkpointed_bytes_ = 0;
  std::unique_ptr<AppendFile> ids_;
  std::unique_ptr<AppendFile> lengths_;
};

}  // namespace widestream::internal
