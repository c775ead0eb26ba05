// StrCat and StrAppend: build messages from strings and numbers without streams or locales.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace widestream {

// A number to be shown as "0x1f": lower case, no leading zeros.
struct Hex {
  std::uint64_t number;
};

namespace format_text_internal {

inline void Append(std::string& out, std::string_view piece) { out.append(piece); }
inline void Append(std::string& out, const char* piece) {
  out.append(piece == nullptr ? std::string_view("(null)") : std::string_view(piece));
}
inline void Append(std::string& out, char piece) { out.push_back(piece); }
inline void Append(std::string& out, std::same_as<bool> auto piece) {
  out.append(piece ? "true" : "false");
}
template <typename T>
concept Number = (std::integral<T> || std::floating_point<T>) && !std::same_as<T, bool> &&
                 !std::same_as<T, char>;
void AppendHex(std::string& out, std::uint64_t number);
inline void Append(std::string& out, Hex piece) { AppendHex(out, piece.number); }

// Integers in decimal; floating point in the shortest form that reads back to the same value.
template <Number T>
void Append(std::string& out, T piece) {
  char buffer[64];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), piece);
  out.append(buffer, end.ptr);
}

}  // namespace format_text_internal

// Appends each piece: text, char, bool ("true"/"false"), an integer, a floating point number, Hex.
template <typename... Pieces>
void StrAppend(std::string& out, const Pieces&... pieces) {
  (format_text_internal::Append(out, pieces), ...);
}

template <typename... Pieces>
[[nodiscard]] std::string StrCat(const Pieces&... pieces) {
  std::string out;
  StrAppend(out, pieces...);
  return out;
}

// Text that may come from a file, made safe for a message: at most `max_bytes` bytes of it, in
// double quotes, with control bytes, bytes above 0x7e, quotes and backslashes as \xNN, and "..."
// where it was cut.
[[nodiscard]] std::string Quoted(std::string_view text, std::size_t max_bytes = 80);

}  // namespace widestream
