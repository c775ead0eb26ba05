#include "engine/transform/vocabulary.h"

#include <xxhash.h>

#include <cstdio>

#include "engine/transform/hash128.h"

namespace widestream::internal {

std::string Quoted(std::string_view bytes) {
  constexpr std::size_t kShown = 48;
  std::string text = "\"";
  for (const char c : bytes.substr(0, kShown)) {
    const auto b = static_cast<unsigned char>(c);
    if (b >= 0x20 && b < 0x7F && b != '"' && b != '\\') {
      text += c;
    } else {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02X", b);
      text += escaped;
    }
  }
  text += bytes.size() > kShown ? "\"..." : "\"";
  return text;
}

std::string TokensDigest(const std::vector<std::string>& tokens) {
  Hash128 hash;
  for (const std::string& token : tokens) hash.AddString(token);
  return hash.Hex();
}

Status CheckVocabulary(const Vocabulary& vocabulary, const std::string& name) {
  if (vocabulary.tokens.size() > kMaxTokens) {
    return Status::ResourceExhausted(name + ": " + std::to_string(vocabulary.tokens.size()) +
                                     " tokens, more than the limit of " +
                                     std::to_string(kMaxTokens) +
                                     "; the largest published vocabularies have 262,144, so this "
                                     "file is probably damaged");
  }
  std::vector<bool> single(256, false);
  std::vector<bool> special(vocabulary.tokens.size(), false);
  for (const AddedToken& added : vocabulary.added_tokens) {
    if (added.id < special.size()) special[added.id] = true;
  }
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (token.size() == 1) single[static_cast<unsigned char>(token[0])] = true;
    if (token.empty() && !special[id]) {
      return Status::InvalidArgument(name + ": no token has id " + std::to_string(id) +
                                     " though larger ids are used; ids must run from 0 without a "
                                     "gap. The file may be cut or edited: get it again");
    }
  }
  for (int b = 0; b < 256; ++b) {
    if (single[b]) continue;
    return Status::InvalidArgument(name + ": the single byte " +
                                   Quoted(std::string(1, static_cast<char>(b))) +
                                   " is no token; a byte-level vocabulary needs all 256, or some "
                                   "text has no ids. Train it with "
                                   "the full byte alphabet, or get the file again");
  }
  return Status::Ok();
}

}  // namespace widestream::internal
