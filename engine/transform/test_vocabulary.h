// Small vocabularies for the tests of this folder: the 256 single bytes, then a few merges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace widestream::testing {

inline std::string Base64(std::string_view bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = (group << 8) | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kAlphabet[(group >> (18 - 6 * k)) & 63];
    }
  }
  return text;
}

// 256 single bytes in order, then `more`.
inline std::vector<std::string> ByteTokens(const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  tokens.reserve(256 + more.size());
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

// Lines of a .tiktoken file; the id of a token is its index.
inline std::string TiktokenFile(const std::vector<std::string>& tokens) {
  std::string file;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    file += Base64(tokens[id]) + " " + std::to_string(id) + "\n";
  }
  return file;
}

// A byte string in the GPT-2 byte alphabet, as a JSON string without its quotes.
inline std::string ByteAlphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const unsigned b = static_cast<unsigned char>(c);
    unsigned code_point = b;
    if (b <= 0x20) code_point = 0x100 + b;
    if (b >= 0x7F && b <= 0xA0) code_point = 0x100 + b - 0x7F + 0x21;
    if (b == 0xAD) code_point = 0x143;
    if (b == '"' || b == '\\') text += '\\';
    if (code_point < 0x80) {
      text += static_cast<char>(code_point);
    } else {
      text += static_cast<char>(0xC0 | (code_point >> 6));
      text += static_cast<char>(0x80 | (code_point & 63));
    }
  }
  return text;
}

// A tokenizer.json; tests replace parts of the text to make bad ones.
inline std::string JsonFile(const std::vector<std::string>& tokens,
                            const std::vector<std::pair<std::string, std::string>>& merges,
                            bool merges_as_pairs = true) {
  std::string file =
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
 {"id": )" +
      std::to_string(tokens.size()) +
      R"(, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
  "normalized": false, "special": true}],
"normalizer": null,
"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
"post_processor": null,
"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
 "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
 "vocab": {)";
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    file += (id == 0 ? "\"" : ", \"") + ByteAlphabet(tokens[id]) + "\": " + std::to_string(id);
  }
  file += "},\n \"merges\": [";
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string left = ByteAlphabet(merges[i].first);
    const std::string right = ByteAlphabet(merges[i].second);
    if (i > 0) file += ", ";
    if (merges_as_pairs) {
      file.append("[\"").append(left).append("\", \"").append(right).append("\"]");
    } else {
      file.append("\"").append(left).append(" ").append(right).append("\"");
    }
  }
  return file + "]}}\n";
}

}  // namespace widestream::testing
