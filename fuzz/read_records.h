// Reads a shard in two ways that must agree.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/shard_reader.h"

namespace widestream {

using ReadRecords = std::vector<std::pair<std::string, std::uint64_t>>;  // text or error, offset

inline void AppendRecords(const RecordBlock& block, ReadRecords* all) {
  for (const RawRecord& record : block.records) {
    std::string text = record.error < 0
                           ? "text " + std::string(record.text)
                           : "error " + block.errors.at(static_cast<std::size_t>(record.error));
    all->emplace_back(std::move(text), record.offset);
  }
}

// Every record of a unit up to `limit`, by one reader. False if the unit is broken.
inline bool ReadInOneGo(ShardReader& shard, std::uint64_t unit, std::uint64_t limit,
                        ReadRecords* all) {
  const auto reader = shard.OpenUnit(unit, 0);
  if (!reader.ok()) return false;
  RecordBlock block;
  do {
    if (!(*reader)->Next(limit, UINT64_MAX, &block).ok()) return false;
    AppendRecords(block, all);
  } while (!block.end_of_unit && all->size() < limit);
  return true;
}

// The same by a new reader for each block, which must find what the one reader found; else the
// program traps.
inline void CheckRestarts(ShardReader& shard, std::uint64_t unit, std::uint64_t block_records,
                          std::uint64_t block_bytes, const ReadRecords& expected) {
  ReadRecords found;
  std::uint64_t offset = 0;
  while (found.size() < expected.size()) {
    const auto reader = shard.OpenUnit(unit, offset);
    RecordBlock block;
    if (!reader.ok() || !(*reader)->Next(block_records, block_bytes, &block).ok()) __builtin_trap();
    if (block.records.empty() || block.next_offset <= offset) __builtin_trap();
    AppendRecords(block, &found);
    offset = block.next_offset;
    if (block.end_of_unit && found.size() != expected.size()) __builtin_trap();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (found[i] != expected[i]) __builtin_trap();
  }
}

}  // namespace widestream
