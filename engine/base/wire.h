// WireWriter and WireReader: the bytes of the versioned messages that roles exchange, and of other
// small binary records.
//
// Layout. Numbers are little-endian, without padding. A bool is a byte, 0 or 1. Bytes (and text)
// are a u64 length and that many bytes. A column is a u64 count and that many numbers. A message
// opens with its header: a u32 magic, which says what kind of message it is, and a u16 version.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

static_assert(std::endian::native == std::endian::little,
              "Columns are copied as they lie in memory; a big-endian port must swap them");

// What a column may hold.
template <typename T>
concept WireNumber = (std::integral<T> || std::floating_point<T>) && !std::same_as<T, bool>;

// "WSPL" as a u32 whose bytes in the message read W, S, P, L.
constexpr std::uint32_t WireMagic(const char (&text)[5]) {
  std::uint32_t magic = 0;
  for (int i = 3; i >= 0; --i) magic = (magic << 8) | static_cast<unsigned char>(text[i]);
  return magic;
}

// Appends values to a growing buffer. Not thread-safe. Cannot fail.
class WireWriter {
 public:
  void Header(std::uint32_t magic, std::uint16_t version) {
    U32(magic);
    U16(version);
  }
  void U8(std::uint8_t value) { Number(value); }
  void U16(std::uint16_t value) { Number(value); }
  void U32(std::uint32_t value) { Number(value); }
  void U64(std::uint64_t value) { Number(value); }
  void I64(std::int64_t value) { Number(value); }
  void F64(double value) { Number(value); }
  void Bool(bool value) { Number(static_cast<std::uint8_t>(value ? 1 : 0)); }
  void Bytes(std::string_view bytes) {
    U64(bytes.size());
    buffer_.append(bytes);
  }
  template <WireNumber T>
  void Column(std::span<const T> values) {
    U64(values.size());
    buffer_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  template <WireNumber T>
  void Column(const std::vector<T>& values) {
    Column(std::span<const T>(values));
  }

  [[nodiscard]] std::string_view bytes() const { return buffer_; }
  // Hands the buffer over and leaves the writer empty.
  [[nodiscard]] std::string Take() { return std::exchange(buffer_, {}); }

 private:
  template <WireNumber T>
  void Number(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    buffer_.append(raw, sizeof(T));
  }

  std::string buffer_;
};

// Reads values in the order in which they were written. The bytes may be hostile: every read is
// checked against what is left and every length against the caller's limit before anything is
// allocated. Errors name the message and the offset: DataCorruption for bytes that do not fit the
// layout, InvalidArgument for another version, ResourceExhausted for a length above the limit.
// After an error the position is unchanged. Borrows the bytes; they must outlive the reader and the
// views it returns. Not thread-safe.
class WireReader {
 public:
  // `what` names the message in errors: "plan message of step 7".
  WireReader(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  // The version, if the magic is right and min_version <= version <= max_version.
  [[nodiscard]] Result<std::uint16_t> Header(std::uint32_t magic, std::uint16_t min_version,
                                             std::uint16_t max_version);
  [[nodiscard]] Result<std::uint8_t> U8() { return Number<std::uint8_t>(); }
  [[nodiscard]] Result<std::uint16_t> U16() { return Number<std::uint16_t>(); }
  [[nodiscard]] Result<std::uint32_t> U32() { return Number<std::uint32_t>(); }
  [[nodiscard]] Result<std::uint64_t> U64() { return Number<std::uint64_t>(); }
  [[nodiscard]] Result<std::int64_t> I64() { return Number<std::int64_t>(); }
  [[nodiscard]] Result<double> F64() { return Number<double>(); }
  [[nodiscard]] Result<bool> Bool();
  // A view into the message, of at most `max_bytes` bytes.
  [[nodiscard]] Result<std::string_view> Bytes(std::uint64_t max_bytes);
  // A column of at most `max_count` numbers.
  template <WireNumber T>
  [[nodiscard]] Result<std::vector<T>> Column(std::uint64_t max_count) {
    WS_ASSIGN_OR_RETURN(const std::string_view raw, Counted(sizeof(T), max_count));
    std::vector<T> values(raw.size() / sizeof(T));
    if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }

  // OK if the whole message was read; DataCorruption if bytes follow.
  [[nodiscard]] Status Finish() const;
  [[nodiscard]] std::size_t offset_bytes() const { return offset_bytes_; }
  [[nodiscard]] std::size_t remaining_bytes() const { return bytes_.size() - offset_bytes_; }
  // DataCorruption with the message's name and the current offset before `problem`: for callers
  // that check what they have read.
  [[nodiscard]] Status Corrupt(std::string_view problem) const;

 private:
  template <WireNumber T>
  Result<T> Number() {
    if (remaining_bytes() < sizeof(T)) return Truncated(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + offset_bytes_, sizeof(T));
    offset_bytes_ += sizeof(T);
    return value;
  }
  // Reads a u64 count and that many elements.
  Result<std::string_view> Counted(std::size_t element_bytes, std::uint64_t max_count);
  Status Truncated(std::uint64_t needed_bytes) const;

  std::string_view bytes_;
  std::string what_;
  std::size_t offset_bytes_ = 0;  // Invariant: at most bytes_.size().
};

}  // namespace widestream
