// One JSON object in, the text under one key out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace widestream {

// Strict: the whole line must be one valid JSON object in valid UTF-8, nested at most
// kMaxJsonDepth deep, with every number in the range of double or 64-bit integers. Of equal keys
// the first counts. `key` is looked up as it is; if there is no such key and it has dots, as a path
// through nested objects ("meta.text"). Not thread-safe; keeps its working memory (up to about 14
// bytes per byte of a line, only touched where the line has that many values), but gives it back
// after a line of more than 1 MiB.
class JsonTextExtractor {
 public:
  static constexpr std::size_t kMaxJsonDepth = 128;
  static constexpr std::uint64_t kMaxLineBytes = 1ULL << 30;

  explicit JsonTextExtractor(std::string key);
  ~JsonTextExtractor();

  // `line` has kLinePaddingBytes readable bytes behind it and at most kMaxLineBytes. True: `text`
  // is valid UTF-8 and lives until the next call. False: `error` says why there is none, in a few
  // words.
  bool Extract(std::string_view line, std::string_view* text, std::string* error);

 private:
  struct Parser;

  const std::string key_;
  std::vector<std::string> path_;  // of key_, if it has dots
  std::unique_ptr<Parser> parser_;
};

}  // namespace widestream
