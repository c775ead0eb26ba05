#include "engine/formats/tar_reader.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/formats/names.h"

namespace widestream {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kBufferBytes = 64U << 10;

std::string_view Field(const char* block, std::size_t at, std::size_t size) {
  const std::string_view field(block + at, size);
  return field.substr(0, std::min(field.find('\0'), size));
}

// An octal number, or base 256 where the first bit is set. False if it is neither, is negative or
// has more than 63 bits.
bool Number(const char* block, std::size_t at, std::size_t size, std::uint64_t* value) {
  *value = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(block + at);
  if ((bytes[0] & 0x80U) != 0) {
    if (bytes[0] != 0x80) return false;
    for (std::size_t i = 1; i < size; ++i) {
      if (*value >> 55 != 0) return false;
      *value = *value << 8 | bytes[i];
    }
    return true;
  }
  std::size_t i = 0;
  while (i < size && bytes[i] == ' ') ++i;
  for (; i < size && bytes[i] >= '0' && bytes[i] <= '7'; ++i) {
    if (*value >> 60 != 0) return false;
    *value = *value << 3 | (bytes[i] - '0');
  }
  while (i < size && (bytes[i] == ' ' || bytes[i] == '\0')) ++i;
  return i == size;
}

bool AllZero(const char* bytes, std::size_t size) {
  return std::all_of(bytes, bytes + size, [](char c) { return c == '\0'; });
}

// As POSIX has it; some old writers summed signed bytes.
bool ChecksumFits(const char* block) {
  constexpr std::size_t kAt = 148;
  constexpr std::size_t kSize = 8;
  std::uint64_t said = 0;
  if (!Number(block, kAt, kSize, &said)) return false;
  std::int64_t positive = 0;
  std::int64_t with_sign = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const char c = i >= kAt && i < kAt + kSize ? ' ' : block[i];
    positive += static_cast<unsigned char>(c);
    with_sign += static_cast<signed char>(c);
  }
  const auto sum = static_cast<std::int64_t>(said);
  return sum == positive || sum == with_sign;
}

TarMember::Kind KindOf(char type) {
  switch (type) {
    case '\0':
    case '0':
    case '7':
      return TarMember::Kind::kFile;
    case '5':
      return TarMember::Kind::kFolder;
    case '1':
    case '2':
      return TarMember::Kind::kLink;
    default:
      return TarMember::Kind::kOther;
  }
}

bool Decimal(std::string_view text, std::uint64_t* value) {
  *value = 0;
  if (text.empty() || text.size() > 18) return false;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    *value = *value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return true;
}

}  // namespace

TarReader::TarReader(std::shared_ptr<const RandomAccessFile> file, std::uint64_t offset)
    : file_(std::move(file)), offset_(offset) {}

Status TarReader::Broken(std::uint64_t offset, const std::string& what) const {
  return Status::DataCorruption(StrCat("'", file_->path(), "', at byte ", offset, ": ", what,
                                       "; copy or write the archive again"));
}

Result<const char*> TarReader::Block(std::uint64_t offset) {
  const std::uint64_t size = file_->size_bytes();
  if (offset > size || size - offset < kBlock) {
    return Broken(offset, StrCat("the archive is cut off: it has ", size,
                                 " bytes and no block of zeros at its end"));
  }
  if (offset < buffer_at_ || offset + kBlock > buffer_at_ + buffer_.size()) {
    buffer_.resize(static_cast<std::size_t>(std::min(kBufferBytes, size - offset)));
    const Status status = ReadExactly(*file_, offset, buffer_.size(), buffer_.data());
    if (!status.ok()) {
      buffer_.clear();
      return status;
    }
    buffer_at_ = offset;
  }
  return buffer_.data() + (offset - buffer_at_);
}

Result<std::string> TarReader::Extended(std::uint64_t header_at, std::uint64_t bytes) {
  if (bytes > kMaxHeaderBytes) {
    return Broken(header_at, StrCat("an extended header of ", bytes, " bytes; at most ",
                                    kMaxHeaderBytes, " are read"));
  }
  std::string content(static_cast<std::size_t>(bytes), '\0');
  WS_RETURN_IF_ERROR(ReadExactly(*file_, header_at + kBlock, content.size(), content.data()));
  return content;
}

// Records "LENGTH KEY=VALUE\n"; only what changes where a member is or what it is called matters.
Status TarReader::ParsePax(std::uint64_t header_at, const std::string& records, bool global,
                           TarMember* member, bool* has_name, bool* has_size) {
  std::string_view rest = records;
  // GNU tar fills with zeros.
  while (!rest.empty() && rest.front() != '\0') {
    const std::size_t space = rest.find(' ');
    std::uint64_t length = 0;
    if (space == std::string_view::npos || !Decimal(rest.substr(0, space), &length) ||
        length > rest.size() || length < space + 3 || rest[length - 1] != '\n') {
      return Broken(header_at, "a pax header whose records have wrong lengths");
    }
    const std::string_view record = rest.substr(space + 1, length - space - 2);
    rest.remove_prefix(length);
    const std::size_t equal = record.find('=');
    if (equal == std::string_view::npos) {
      return Broken(header_at, "a pax header with a record that has no '='");
    }
    const std::string_view key = record.substr(0, equal);
    const std::string_view value = record.substr(equal + 1);
    const bool sparse = key.starts_with("GNU.sparse");
    if (!sparse && key != "path" && key != "size") continue;
    if (sparse || global) {
      return Broken(header_at, StrCat("a ", global ? "global " : "", "pax header with ",
                                      QuoteName(key), ", which cannot be read"));
    }
    if (key == "path") {
      member->name = value;
      *has_name = true;
    } else {
      if (!Decimal(value, &member->content_bytes)) {
        return Broken(header_at, StrCat("a pax header with the size ", QuoteName(value)));
      }
      *has_size = true;
    }
  }
  return {};
}

Status TarReader::CheckRest(std::uint64_t offset) {
  const std::uint64_t size = file_->size_bytes();
  for (; offset < size; offset += kBlock) {
    if (size - offset < kBlock) {
      char tail[kBlock];
      const auto left = static_cast<std::size_t>(size - offset);
      WS_RETURN_IF_ERROR(ReadExactly(*file_, offset, left, tail));
      if (AllZero(tail, left)) return {};
    } else {
      WS_ASSIGN_OR_RETURN(const char* const block, Block(offset));
      if (AllZero(block, kBlock)) continue;
    }
    return Status::InvalidArgument(
        StrCat("'", file_->path(), "', at byte ", offset,
               ": data follow the end of the archive; "
               "archives that were put one after the other must be joined with `tar -A`"));
  }
  return {};
}

Result<bool> TarReader::Next(TarMember* member) {
  *member = TarMember();
  member->header_at = offset_;
  bool has_name = false;
  bool has_size = false;
  while (true) {
    const std::uint64_t at = offset_;
    WS_ASSIGN_OR_RETURN(const char* const block, Block(at));
    if (AllZero(block, kBlock)) {
      if (at != member->header_at) return Broken(at, "an extended header without a member");
      WS_RETURN_IF_ERROR(CheckRest(at + kBlock));
      return false;
    }
    if (!ChecksumFits(block)) return Broken(at, "no tar header: its checksum does not fit");
    std::uint64_t bytes = 0;
    if (!Number(block, 124, 12, &bytes)) return Broken(at, "a header whose size is no number");
    const char type = block[156];
    const bool extended = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    const TarMember::Kind kind = KindOf(type);
    if (type == 'S' || type == 'M') {
      return Broken(at, "a sparse member or a part of several volumes, which cannot be read");
    }
    if (!extended && has_size) bytes = member->content_bytes;
    // Links and folders have no content, whatever their size says.
    if (!extended && (kind == TarMember::Kind::kLink || kind == TarMember::Kind::kFolder)) {
      bytes = 0;
    }
    const std::uint64_t size = file_->size_bytes();
    if (bytes > size - at - kBlock) {
      return Broken(at, StrCat("a member of ", bytes, " bytes, but the file ends ",
                               size - at - kBlock, " bytes after its header"));
    }
    if (!extended && !has_name) {
      member->name = Field(block, 0, 100);
      if (std::string_view(block + 257, 6) == std::string_view("ustar\0", 6)) {
        const std::string_view prefix = Field(block, 345, 155);
        if (!prefix.empty()) member->name = StrCat(prefix, "/", member->name);
      }
    }
    // The last padding may be missing only where the archive is cut off, which the next call says.
    offset_ = at + kBlock + (bytes + kBlock - 1) / kBlock * kBlock;
    if (!extended) {
      member->kind = kind;
      member->content_at = at + kBlock;
      member->content_bytes = bytes;
      return true;
    }
    if (type == 'K') continue;  // the target of a link, which is not followed
    WS_ASSIGN_OR_RETURN(std::string content, Extended(at, bytes));
    if (type == 'L') {
      member->name = content.substr(0, content.find('\0'));
      has_name = true;
    } else {
      WS_RETURN_IF_ERROR(ParsePax(at, content, type == 'g', member, &has_name, &has_size));
    }
  }
}

}  // namespace widestream
