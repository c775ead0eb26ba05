// The bytes of journal records (docs/formats/journal.md). Private to engine/plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/plan/journal.h"
#include "engine/storage/file_system.h"

namespace widestream::journal_format {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kFrameBytes = 16;  // length, type, three zeros, checksum
inline constexpr std::uint32_t kMaxPayloadBytes = 1U << 30;

enum class RecordType : std::uint8_t {
  kHeader = 0,
  kStep = 1,
  kDecision = 2,
  kManifest = 3,
  kNote = 4,
  kFork = 5,
};

// A frame and its payload, ready to append.
std::string Frame(RecordType type, std::string_view payload);

std::string HeaderPayload(const JournalIdentity& identity);
std::string StepPayload(const StepPlan& plan, const Hash128& digest);
std::string ManifestPayload(const JournalManifest& manifest);
std::string ForkPayload(std::uint64_t step, const JournalIdentity& identity);

Result<StepPlan> ParseStep(std::string_view payload);
Result<JournalManifest> ParseManifest(std::string_view payload);

struct Record {
  RecordType type = RecordType::kNote;
  std::uint64_t offset_bytes = 0;
  std::string payload;
};

// The whole record at `offset_bytes`; DataCorruption says why there is none.
Result<Record> ReadRecord(const RandomAccessFile& file, std::uint64_t offset_bytes);

// Books a record in the contents by the rules of JournalContents. DataCorruption if its payload
// contradicts its type.
Status Apply(const Record& record, JournalContents& contents);

// All whole records from the start of the file. A damaged record ends the scan with a tear; only
// failed reads are errors.
Result<JournalContents> Scan(const RandomAccessFile& file);

}  // namespace widestream::journal_format
