#include "engine/base/wire.h"

#include "engine/base/format_text.h"

namespace widestream {

Status WireReader::Corrupt(std::string_view problem) const {
  return Status::DataCorruption(StrCat(what_, ", byte ", offset_bytes_, ": ", problem));
}

Status WireReader::Truncated(std::uint64_t needed_bytes) const {
  return Corrupt(StrCat("expected ", needed_bytes, " more bytes, found ", remaining_bytes(),
                        "; the message is cut short or damaged"));
}

Result<std::uint16_t> WireReader::Header(std::uint32_t magic, std::uint16_t min_version,
                                         std::uint16_t max_version) {
  const std::size_t start = offset_bytes_;
  constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t) + sizeof(std::uint16_t);
  if (remaining_bytes() < kHeaderBytes) return Truncated(kHeaderBytes);
  WS_ASSIGN_OR_RETURN(const std::uint32_t found_magic, U32());
  WS_ASSIGN_OR_RETURN(const std::uint16_t version, U16());
  if (found_magic == magic && version >= min_version && version <= max_version) return version;
  offset_bytes_ = start;
  if (found_magic != magic) {
    return Corrupt(StrCat("expected the magic number ", Hex{magic}, ", found ", Hex{found_magic},
                          "; these bytes are another kind of message or damaged"));
  }
  return Status::InvalidArgument(StrCat(what_, " has version ", version,
                                        "; this build reads versions ", min_version, " to ",
                                        max_version, ". Use the same release on both sides"));
}

Result<bool> WireReader::Bool() {
  WS_ASSIGN_OR_RETURN(const std::uint8_t value, U8());
  if (value > 1) {
    --offset_bytes_;
    return Corrupt(StrCat("expected 0 or 1, found ", value));
  }
  return value == 1;
}

Result<std::string_view> WireReader::Bytes(std::uint64_t max_bytes) {
  return Counted(1, max_bytes);
}

Result<std::string_view> WireReader::Counted(std::size_t element_bytes, std::uint64_t max_count) {
  const std::size_t start = offset_bytes_;
  WS_ASSIGN_OR_RETURN(const std::uint64_t count, U64());
  Status error;
  if (count > max_count) {
    error = Status::ResourceExhausted(StrCat(what_, ", byte ", start, ": a length of ", count,
                                             " elements of ", element_bytes,
                                             " bytes exceeds the limit of ", max_count));
  } else if (count > remaining_bytes() / element_bytes) {
    error = Corrupt(StrCat("expected ", count, " elements of ", element_bytes, " bytes, found ",
                           remaining_bytes(), " bytes; the message is cut short or damaged"));
  }
  if (!error.ok()) {
    offset_bytes_ = start;
    return error;
  }
  const std::string_view raw = bytes_.substr(offset_bytes_, count * element_bytes);
  offset_bytes_ += raw.size();
  return raw;
}

Status WireReader::Finish() const {
  if (remaining_bytes() == 0) return Status::Ok();
  return Corrupt(StrCat("expected the end of the message, found ", remaining_bytes(),
                        " more bytes; the sender is of another version or the message is damaged"));
}

}  // namespace widestream
