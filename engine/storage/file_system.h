// Where bytes live: positional reads, listing, atomic durable writes. One interface; local files
// here, object stores later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

struct FileInfo {
  std::string path;
  std::uint64_t size_bytes = 0;
  bool is_directory = false;      // of what a symbolic link points to
  bool is_symbolic_link = false;  // filled by List
};

// Open for positional reads. Thread-safe.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Reads up to `size` bytes at `offset` into `out`. Returns the number read; local files give
  // fewer only at the end of the file (short reads of the system are continued), and nothing past
  // size_bytes(). Callers that need every byte use ReadExactly, which bears short reads.
  virtual Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size, char* out) const = 0;
  virtual std::uint64_t size_bytes() const = 0;  // as found when opened
  virtual const std::string& path() const = 0;
};

// Fills all of `out`. DataCorruption, naming file and offset, if the file ends before (it was
// shorter than its size said: truncated while it was open).
Status ReadExactly(const RandomAccessFile& file, std::uint64_t offset, std::size_t size, char* out);

// An append-only file (the journal). Not thread-safe. After a failed Append or Sync nobody knows
// what is on disk: every later call returns that failure; reopen, check and truncate to go on.
class AppendFile {
 public:
  virtual ~AppendFile() = default;
  virtual Status Append(std::string_view bytes) = 0;
  virtual Status Sync() = 0;  // durable when it returns OK
  virtual Status Close() = 0;
};

// Thread-safe. Paths are absolute.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) = 0;
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  // Direct entries of a folder, sorted bytewise by path.
  virtual Result<std::vector<FileInfo>> List(const std::string& folder) = 0;
  virtual Result<std::unique_ptr<AppendFile>> OpenAppend(
      const std::string& path) = 0;  // created if absent
  virtual Status WriteAtomically(
      const std::string& path,
      std::string_view bytes) = 0;  // temp file, fsync, rename, fsync folder
  virtual Result<std::string> ReadAll(const std::string& path, std::uint64_t limit_bytes) = 0;
  virtual Status Truncate(const std::string& path, std::uint64_t size_bytes) = 0;  // and sync
  virtual Status CreateFolders(const std::string& path) = 0;
  virtual Status Remove(const std::string& path) = 0;
};

std::shared_ptr<FileSystem> LocalFileSystem();
// A view of `inner`, whose paths are those of this machine, that opens nothing outside `roots`
// (after resolving symbolic links and ".."): InvalidArgument naming the path and the roots. `inner`
// is given the resolved path. Writing and removing follow the same rule. Roots are resolved at
// construction; one that does not exist admits nothing.
std::shared_ptr<FileSystem> RestrictToRoots(std::shared_ptr<FileSystem> inner,
                                            std::vector<std::string> roots);
// Files matched by a file, a folder (its files, recursively) or a glob (`*`, `?`, `[..]`, `**`),
// sorted bytewise. An existing file whose name looks like a glob is that file. `**` is any number
// of folders; in a folder and under `**`, names that begin with "." or "_" (temporary files,
// _SUCCESS) and folders that are symbolic links are passed over; `*`, `?` and `[` do not match a
// leading ".". A pattern that matches nothing is NotFound with the pattern and the nearest existing
// folder.
Result<std::vector<FileInfo>> Glob(FileSystem& fs, const std::string& pattern);

}  // namespace widestream
