// The journal: what was planned and decided, in order. Append-only, every record checksummed; its
// bytes are described in docs/formats/journal.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/plan/planner.h"
#include "engine/storage/file_system.h"

namespace widestream {

// What a journal belongs to. Records name sources by their index in `sources`.
struct JournalIdentity {
  std::string stream_hash;           // 32 hexadecimal digits, as StreamHash gives
  std::vector<std::string> sources;  // names, in the order of JobSpec::sources

  friend bool operator==(const JournalIdentity&, const JournalIdentity&) = default;
};

// The files of a source's epoch, as its loader froze them; `bytes` is the loader's own text.
struct JournalManifest {
  std::uint32_t source = 0;
  std::uint32_t epoch = 0;
  std::string hash;
  std::string bytes;

  friend bool operator==(const JournalManifest&, const JournalManifest&) = default;
};

// Why and where the readable part of a journal ends before the file does.
struct JournalTear {
  std::uint64_t offset_bytes = 0;  // of the first byte that is not part of a whole record
  std::uint64_t lost_bytes = 0;    // from there to the end of the file
  bool records_follow = false;  // whole records follow the damage: not the tail of a crash, so look
                                // at the disk before repairing
  std::string reason;
};

// What a journal holds: small records whole, steps by offset. A value. Rules (docs/formats/
// journal.md): a later record of a step replaces the earlier one; a decision for step k or a fork
// at step k voids the steps from k on; a fork also voids decisions from k on and renews the
// identity.
struct JournalContents {
  struct Step {
    std::uint64_t step = 0;
    std::uint64_t offset_bytes = 0;
    Hash128 digest;
  };
  struct Manifest {
    std::uint32_t source = 0;
    std::uint32_t epoch = 0;
    std::string hash;
    std::uint64_t offset_bytes = 0;
  };
  JournalIdentity identity;
  std::vector<Step> steps;          // ascending
  std::vector<Decision> decisions;  // by step, then as recorded
  std::vector<Manifest> manifests;  // as recorded; one a (source, epoch)
  std::vector<std::string> notes;   // as recorded
  std::uint64_t valid_bytes = 0;
  std::optional<JournalTear> tear;

  // nullptr if the step is not there.
  const Step* Find(std::uint64_t step) const;
};

// Reads a journal that may be torn or hostile; memory is bounded by the file's size. NotFound if
// there is none; DataCorruption if not even its first record can be read.
class JournalReader {
 public:
  static Result<std::unique_ptr<JournalReader>> Open(std::shared_ptr<FileSystem> files,
                                                     const std::string& path);
  const JournalContents& contents() const { return contents_; }
  // NotFound names the steps that there are.
  Result<StepPlan> ReadStep(std::uint64_t step) const;
  Result<JournalManifest> ReadManifest(std::uint32_t source, std::uint32_t epoch) const;

 private:
  JournalReader(std::shared_ptr<FileSystem> files, std::unique_ptr<RandomAccessFile> file);

  std::shared_ptr<FileSystem> files_;
  std::unique_ptr<RandomAccessFile> file_;
  JournalContents contents_;
};

// Cuts off what follows the last whole record, as a crash leaves it. Returns what was cut (nullopt:
// nothing). Refuses (DataCorruption) if records follow the damage that no crash leaves there (the
// next one is whole, or a later one of a kind that is synced), unless `even_if_records_follow`; and
// always if the file is no journal. One whose header was cut short becomes empty.
Result<std::optional<JournalTear>> RepairJournal(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& path,
                                                 bool even_if_records_follow = false);

// Appends. Not thread-safe; one writer a file. Steps and notes are buffered and become durable with
// Commit (call it at most a second apart, and before a checkpoint); decisions, manifests and forks
// are durable when their call returns OK. A call that fails has recorded nothing, and the file ends
// with a whole record: the caller may free space and call again. After a failed sync, or if the
// rest of a torn append could not be removed, every further call fails: open the journal anew.
class JournalWriter {
 public:
  // Creates the journal if the file is absent or empty. InvalidArgument if it belongs to another
  // stream or other sources; DataCorruption if it is torn (RepairJournal).
  static Result<std::unique_ptr<JournalWriter>> Open(std::shared_ptr<FileSystem> files,
                                                     const std::string& path,
                                                     const JournalIdentity& identity);
  // The same without the check of identity: voids the steps and decisions from `step` on, and the
  // journal belongs to `identity` from here on. Nothing is deleted.
  static Result<std::unique_ptr<JournalWriter>> OpenFork(std::shared_ptr<FileSystem> files,
                                                         const std::string& path,
                                                         const JournalIdentity& identity,
                                                         std::uint64_t step);
  ~JournalWriter();

  // A step that is there already must have the same digest (DataCorruption: planning it again gave
  // another result, so the data, a transform or the engine changed) and is not written again.
  Status AppendStep(const StepPlan& plan);
  Status AppendDecision(const Decision& decision);
  // Not written again if the source's epoch is there with the same hash; DataCorruption if with
  // another one.
  Status AppendManifest(const JournalManifest& manifest);
  Status AppendNote(std::string_view text);
  // Makes all that was appended durable.
  Status Commit();
  // Commit and close the file.
  Status Close();

  // Including what is not yet durable.
  const JournalContents& contents() const { return contents_; }

 private:
  JournalWriter(std::shared_ptr<FileSystem> files, std::string path);

  static Result<std::unique_ptr<JournalWriter>> OpenAny(std::shared_ptr<FileSystem> files,
                                                        const std::string& path,
                                                        const JournalIdentity& identity,
                                                        std::optional<std::uint64_t> fork);
  Status Buffer(const std::string& record);
  Status WriteNow(const std::string& record);
  Status Flush();
  Status AppendBytes(std::string_view bytes);

  const std::shared_ptr<FileSystem> files_;
  const std::string path_;
  std::unique_ptr<AppendFile> file_;
  JournalContents contents_;
  std::string buffer_;               // whole records, not yet in the file
  std::uint64_t written_bytes_ = 0;  // whole records in the file
  bool synced_ = true;
  Status broken_;  // OK, or why nothing more can be written
};

}  // namespace widestream
