#include "engine/formats/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace widestream {
namespace {

constexpr std::size_t kInputBytes = 256U << 10;

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(std::shared_ptr<const RandomAccessFile> file) : file_(std::move(file)) {}

  Result<std::size_t> Read(char* out, std::size_t size) override {
    const std::uint64_t left = file_->size_bytes() - position_;
    size = static_cast<std::size_t>(std::min<std::uint64_t>(size, left));
    if (size == 0) return std::size_t{0};
    WS_ASSIGN_OR_RETURN(const std::size_t got, file_->ReadAt(position_, size, out));
    if (got == 0) return ReadExactly(*file_, position_, 1, out);  // says how the file shrank
    position_ += got;
    return got;
  }
  Status Skip(std::uint64_t count) override {
    if (count > file_->size_bytes() - position_) {
      return Status::InvalidArgument("'" + file_->path() + "' has " +
                                     std::to_string(file_->size_bytes()) + " bytes, so none at " +
                                     std::to_string(position_ + count) +
                                     ": the position is of another version of the file");
    }
    position_ += count;
    return {};
  }
  std::uint64_t position() const { return position_; }
  const RandomAccessFile& file() const { return *file_; }

 private:
  const std::shared_ptr<const RandomAccessFile> file_;
  std::uint64_t position_ = 0;
};

// Reads the stored bytes of a compressed file in chunks.
class Input {
 public:
  explicit Input(std::shared_ptr<const RandomAccessFile> file)
      : stream_(std::move(file)), buffer_(new char[kInputBytes]) {}

  // Reads on if all was consumed. After OK, empty() means the end of the file.
  Status Fill() {
    if (begin_ != end_) return {};
    begin_ = end_ = 0;
    WS_ASSIGN_OR_RETURN(end_, stream_.Read(buffer_.get(), kInputBytes));
    return {};
  }
  bool empty() const { return begin_ == end_; }
  char* data() { return buffer_.get() + begin_; }
  std::size_t size() const { return end_ - begin_; }
  void Consume(std::size_t bytes) { begin_ += bytes; }

  Status Corrupt(const std::string& what) const {
    return Status::DataCorruption("'" + stream_.file().path() + "': " + what + " at byte " +
                                  std::to_string(stream_.position() - size()) + " of " +
                                  std::to_string(stream_.file().size_bytes()) +
                                  "; restore or recompress the file");
  }

 private:
  PlainStream stream_;
  const std::unique_ptr<char[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::shared_ptr<const RandomAccessFile> file) : input_(std::move(file)) {}
  ~GzipStream() override {
    if (initialised_) inflateEnd(&zlib_);
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  Result<std::size_t> Read(char* out, std::size_t size) override {
    size = std::min<std::size_t>(size, 1U << 30);  // zlib counts in 32 bits
    while (true) {
      WS_RETURN_IF_ERROR(input_.Fill());
      if (!in_member_) {
        if (input_.empty()) return std::size_t{0};
        WS_ASSIGN_OR_RETURN(const bool padding, SkipPadding());
        if (padding) continue;
        WS_RETURN_IF_ERROR(StartMember());
      }
      if (input_.empty()) return input_.Corrupt("the gzip data ends too early");
      zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
      zlib_.avail_in = static_cast<uInt>(input_.size());
      zlib_.next_out = reinterpret_cast<Bytef*>(out);
      zlib_.avail_out = static_cast<uInt>(size);
      const int rc = inflate(&zlib_, Z_NO_FLUSH);
      input_.Consume(input_.size() - zlib_.avail_in);
      if (rc == Z_MEM_ERROR) return Status::ResourceExhausted("no memory to decompress gzip data");
      if (rc == Z_STREAM_END) {
        in_member_ = false;
      } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
        return input_.Corrupt(std::string("the gzip data is corrupt (") +
                              (zlib_.msg != nullptr ? zlib_.msg : "unknown error") + ")");
      }
      const std::size_t produced = size - zlib_.avail_out;
      if (produced > 0) return produced;
    }
  }

 private:
  // Tape and block writers pad the last member with zero bytes; nothing may follow them.
  Result<bool> SkipPadding() {
    if (!initialised_ || (!padded_ && *input_.data() != 0)) return false;
    padded_ = true;
    const char* begin = input_.data();
    const char* other = std::find_if(begin, begin + input_.size(), [](char c) { return c != 0; });
    const bool all_zero = other == begin + input_.size();
    input_.Consume(static_cast<std::size_t>(other - begin));
    if (!all_zero) return input_.Corrupt("bytes that are not gzip data follow zero padding");
    return true;
  }
  Status StartMember() {
    const int rc = initialised_ ? inflateReset(&zlib_) : inflateInit2(&zlib_, 15 + 16);
    if (rc != Z_OK) return Status::ResourceExhausted("no memory to decompress gzip data");
    initialised_ = true;
    in_member_ = true;
    return {};
  }

  Input input_;
  z_stream zlib_{};
  bool initialised_ = false;
  bool in_member_ = false;
  bool padded_ = false;
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(std::shared_ptr<const RandomAccessFile> file)
      : input_(std::move(file)), context_(ZSTD_createDCtx()) {
    if (context_ != nullptr) {
      ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLogMax);
    }
  }
  ~ZstdStream() override { ZSTD_freeDCtx(context_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  Result<std::size_t> Read(char* out, std::size_t size) override {
    if (context_ == nullptr) {
      return Status::ResourceExhausted("no memory to decompress Zstandard data");
    }
    while (true) {
      WS_RETURN_IF_ERROR(input_.Fill());
      if (input_.empty() && frame_done_) return std::size_t{0};
      ZSTD_inBuffer in = {input_.data(), input_.size(), 0};
      ZSTD_outBuffer produced = {out, size, 0};
      const bool at_end = input_.empty();
      const std::size_t rc = ZSTD_decompressStream(context_, &produced, &in);
      if (ZSTD_isError(rc) != 0) {
        return input_.Corrupt(std::string("the Zstandard data cannot be decompressed (") +
                              ZSTD_getErrorName(rc) + ")");
      }
      input_.Consume(in.pos);
      frame_done_ = rc == 0;
      if (produced.pos > 0) return produced.pos;
      if (at_end && !frame_done_) return input_.Corrupt("the Zstandard data ends too early");
    }
  }

 private:
  Input input_;
  ZSTD_DCtx* const context_;
  bool frame_done_ = true;  // also before the first frame: an empty file has no bytes
};

bool EndsWith(std::string_view name, std::string_view suffix) {
  if (name.size() < suffix.size()) return false;
  name.remove_prefix(name.size() - suffix.size());
  return std::equal(name.begin(), name.end(), suffix.begin(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

}  // namespace

Compression CompressionFromName(std::string_view path) {
  if (EndsWith(path, ".gz")) return Compression::kGzip;
  if (EndsWith(path, ".zst") || EndsWith(path, ".zstd")) return Compression::kZstd;
  return Compression::kNone;
}

Status ByteStream::Skip(std::uint64_t count) {
  std::vector<char> discarded(static_cast<std::size_t>(std::min<std::uint64_t>(count, 1U << 18)));
  for (std::uint64_t left = count; left > 0;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(left, discarded.size()));
    WS_ASSIGN_OR_RETURN(const std::size_t got, Read(discarded.data(), wanted));
    if (got == 0) {
      return Status::InvalidArgument("the file has " + std::to_string(count - left) +
                                     " bytes decompressed, so none at " + std::to_string(count) +
                                     ": the position is of another version of the file");
    }
    left -= got;
  }
  return {};
}

std::unique_ptr<ByteStream> OpenByteStream(std::shared_ptr<const RandomAccessFile> file,
                                           Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return std::make_unique<GzipStream>(std::move(file));
    case Compression::kZstd:
      return std::make_unique<ZstdStream>(std::move(file));
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainStream>(std::move(file));
}

}  // namespace widestream
