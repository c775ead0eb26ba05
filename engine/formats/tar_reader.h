// The members of a tar file one after the other: ustar, pax, and GNU long names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

struct TarMember {
  enum class Kind : std::uint8_t { kFile, kFolder, kLink, kOther };
  Kind kind = Kind::kFile;
  std::string name;             // data from the file: never a path to open
  std::uint64_t header_at = 0;  // of its first header, extended ones included
  std::uint64_t content_at = 0;
  std::uint64_t content_bytes = 0;  // lies inside the file
};

// Not thread-safe. Memory: one buffer of 64 KiB and an extended header of at most kMaxHeaderBytes.
// A broken archive is DataCorruption that names file and offset; so is one without the block of
// zeros that ends an archive, which was cut off.
class TarReader {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 1U << 20;

  // Begins at the header at `offset`.
  TarReader(std::shared_ptr<const RandomAccessFile> file, std::uint64_t offset);

  // The next member; false at the end of the archive.
  Result<bool> Next(TarMember* member);
  // Where the next header begins.
  std::uint64_t offset() const { return offset_; }

 private:
  Result<const char*> Block(std::uint64_t offset);
  Result<std::string> Extended(std::uint64_t header_at, std::uint64_t bytes);
  Status ParsePax(std::uint64_t header_at, const std::string& records, bool global,
                  TarMember* member, bool* has_name, bool* has_size);
  Status CheckRest(std::uint64_t offset);
  Status Broken(std::uint64_t offset, const std::string& what) const;

  const std::shared_ptr<const RandomAccessFile> file_;
  std::uint64_t offset_;
  std::vector<char> buffer_;
  std::uint64_t buffer_at_ = 0;
};

}  // namespace widestream
