// A filesystem that fails on purpose, by a script: for tests of everything that reads or writes,
// ours and users'.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/storage/file_system.h"

namespace widestream {

enum class FileOperation : std::uint8_t {
  kOpen,
  kStat,
  kList,
  kRead,  // one ReadAt, or one ReadAll
  kOpenAppend,
  kAppend,
  kSync,
  kWriteAtomically,
  kTruncate,
  kCreateFolders,
  kRemove,
};

enum class FaultKind : std::uint8_t {
  kError,       // the operation does nothing and fails with `error_number`
  kShortRead,   // kRead: at most `bytes` (at least one) come back
  kLatency,     // `seconds` pass before the operation is carried out
  kTornAppend,  // kAppend: the first `bytes` land, then it fails with `error_number`
};

// A fault hits the operations that are of its kind on a path that matches, from the `first`th
// (counted from 0 by this fault alone) for `count` of them; with a `probability` below 1, each of
// these only by a draw that depends on the filesystem's seed, the fault and that number, never on
// time.
struct Fault {
  FaultKind kind = FaultKind::kError;
  FileOperation operation = FileOperation::kRead;
  std::string path_pattern = "*";  // of WildcardMatch; `*` matches "/" too
  std::uint64_t first = 0;
  std::uint64_t count = UINT64_MAX;
  double probability = 1.0;
  int error_number = 5;  // EIO; 28 is ENOSPC
  std::uint64_t bytes = 1;
  double seconds = 0.0;
};

// Wraps `inner`. Thread-safe. What is written by OpenAppend reaches `inner` at once but counts as
// durable only after Sync; Crash() takes the rest back. WriteAtomically is durable when it returns.
class FaultyFileSystem final : public FileSystem {
 public:
  // `sleep` carries out latency; empty = sleep for real.
  FaultyFileSystem(std::shared_ptr<FileSystem> inner, std::vector<Fault> script,
                   std::uint64_t seed = 0, std::function<void(double seconds)> sleep = {});
  ~FaultyFileSystem() override;

  // The machine loses power and comes back: of each appended file all that was not synced is gone
  // but its first `kept_bytes`, and every AppendFile that is open fails for ever. Give no
  // concurrent appends.
  Status Crash(std::uint64_t kept_bytes = 0);
  // How many operations were disturbed so far.
  std::uint64_t faults_injected() const;

  Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<FileInfo>> List(const std::string& folder) override;
  Result<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override;
  Status WriteAtomically(const std::string& path, std::string_view bytes) override;
  Result<std::string> ReadAll(const std::string& path, std::uint64_t limit_bytes) override;
  Status Truncate(const std::string& path, std::uint64_t size_bytes) override;
  Status CreateFolders(const std::string& path) override;
  Status Remove(const std::string& path) override;

 private:
  class Core;
  const std::shared_ptr<Core> core_;  // shared with the files it opened
};

}  // namespace widestream
