// What a SourceLoader and the Planner say to each other. Versioned, serialisable values; no payload
// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

inline constexpr std::uint16_t kMessageVersion = 1;

// Where reading can begin again: the first record of a block. Found without an index.
struct RestartPoint {
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;  // of the block's first place in the order
  std::uint64_t unit = 0;      // place of the block's unit in the permuted units of the epoch
  std::uint64_t block = 0;     // number of the block inside the unit
  std::uint64_t offset =
      0;  // where the block begins in the unit; its meaning is the format's (bytes or records)
  std::uint64_t record = 0;  // number of the block's first record in its shard

  friend bool operator==(const RestartPoint&, const RestartPoint&) = default;
};

// What became of an examined record. Everything but kDelivered yields no tokens.
enum class RecordOutcome : std::uint8_t {
  kDelivered = 0,
  kHeldOut = 1,
  kFiltered = 2,
  kDropped = 3,
  kCorrupt = 4,
  kQuarantined = 5
};

// Asks for the metadata of the next `records` records in source order. Idempotent: the same request
// gives the same answer, whoever serves it. Fewer come back at the end of a block; none only at the
// end of the epoch.
struct ReadRequest {
  std::uint32_t source = 0;  // index in JobSpec::sources
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;
  std::uint64_t records = 0;
  std::uint64_t incarnation =
      0;  // of the loader that the caller believes in; a stale one is refused

  friend bool operator==(const ReadRequest&, const ReadRequest&) = default;
};

// Columns over consecutive positions [position, position + size()) of one block.
struct MetadataBatch {
  std::uint32_t source = 0;
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;
  bool end_of_epoch = false;  // no record follows the last one of this batch in its epoch
  RestartPoint restart;       // of the block that these records are in
  std::vector<RecordOutcome> outcome;
  std::vector<std::uint32_t>
      tokens;  // L of stream.md section 2: text and appended tokens; 0 unless delivered
  std::vector<std::uint32_t> bytes;  // raw text bytes
  std::vector<std::uint64_t>
      ids_hash;  // xxh3-64 of the ids as little-endian uint32; 0 unless delivered
  std::vector<std::uint32_t> shard;   // index in the epoch's manifest
  std::vector<std::uint64_t> record;  // number inside the shard

  // Why records are corrupt, for messages: (index in the columns, text), ascending.
  std::vector<std::pair<std::uint32_t, std::string>> problems;

  std::size_t size() const { return outcome.size(); }
  friend bool operator==(const MetadataBatch&, const MetadataBatch&) = default;
};

// Wire forms (docs/formats/messages.md). Decoding checks magic, version, lengths and column sizes.
std::string Encode(const ReadRequest& request);
std::string Encode(const MetadataBatch& batch);
Result<ReadRequest> DecodeReadRequest(std::string_view bytes);
Result<MetadataBatch> DecodeMetadataBatch(std::string_view bytes);

}  // namespace widestream
