#include "engine/base/format_text.h"

namespace widestream {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

namespace format_text_internal {

void AppendHex(std::string& out, std::uint64_t number) {
  char buffer[16];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), number, 16);
  out.append("0x");
  out.append(buffer, end.ptr);
}

}  // namespace format_text_internal

std::string Quoted(std::string_view text, std::size_t max_bytes) {
  std::string out = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e || c == '"' || c == '\\') {
      out += "\\x";
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace widestream
