// The bytes of a sequential file from front to back, decompressed if need be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

// .gz is gzip, .zst and .zstd are Zstandard, all else is plain; case does not matter.
Compression CompressionFromName(std::string_view path);

// The largest window that a Zstandard frame may ask for (what `zstd` itself accepts by default).
inline constexpr int kZstdWindowLogMax = 27;

// Not thread-safe. After an error the stream is finished.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `size` (> 0) bytes; 0 only at the end. DataCorruption names the file and the byte of the
  // stored file where it is broken or ends too early.
  virtual Result<std::size_t> Read(char* out, std::size_t size) = 0;
  // Passes over `count` bytes; InvalidArgument if the end comes first. A plain file seeks, a
  // compressed one decompresses and discards.
  virtual Status Skip(std::uint64_t count);
};

// `file` is shared, so that several streams can read one open file. Memory: a buffer of 256 KiB and
// the decompressor's window (gzip 32 KiB, Zstandard at most 128 MiB).
std::unique_ptr<ByteStream> OpenByteStream(std::shared_ptr<const RandomAccessFile> file,
                                           Compression compression);

}  // namespace widestream
