// Strict reading of one JSON object into plain values: unknown keys, wrong types and values out of
// range become an InvalidArgument that names the key by its path. Private to engine/job.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace widestream::job_internal {

// Limits that hold before anything is allocated for a value.
inline constexpr std::size_t kMaxJsonBytes = 64U << 20;
inline constexpr std::size_t kMaxStringBytes = 4096;

// Text to JSON. Refuses what nlohmann::json would let pass: repeated keys, deep nesting, huge
// texts.
Result<nlohmann::json> ParseStrict(std::string_view text);

// The candidate nearest to `word` by edit distance, or "" if none is near.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);
// "; did you mean \"rows\"?" or "; valid: a, b, c".
std::string Hint(std::string_view word, const std::vector<std::string>& candidates);

// A short printable form of a JSON value for messages, such as `"abc" (a string)`.
std::string Describe(const nlohmann::json& value);
// `text` as a JSON string literal; invalid UTF-8 is replaced.
std::string Quote(std::string_view text);

// Reads the members of one object. The first error of a whole parse is kept in `*error`, and every
// call after it does nothing, so a caller reads all members and checks once. Not thread-safe;
// borrows `json` and `error`, which must outlive it. A key that is absent leaves the value as it
// is.
class JsonObject {
 public:
  // `path` is "" for the root. Fails if `json` is no object or has a key outside `keys`.
  JsonObject(const nlohmann::json& json, std::string path, std::initializer_list<const char*> keys,
             Status* error);

  // False once any error was found.
  bool ok() const { return error_->ok(); }
  // The member, or nullptr if it is absent (or after an error).
  const nlohmann::json* Find(const char* key) const;
  // The same; an absent member is an error whose message ends with `what_to_write`.
  const nlohmann::json* Require(const char* key, const char* what_to_write);
  std::string Path(std::string_view key) const;
  void Fail(std::string_view key, const std::string& message);

  void Read(const char* key, std::string* value, std::size_t max_bytes = kMaxStringBytes);
  void Read(const char* key, bool* value);
  void Read(const char* key, std::uint64_t* value, std::uint64_t min, std::uint64_t max);
  void Read(const char* key, std::uint32_t* value, std::uint32_t min, std::uint32_t max);
  void Read(const char* key, double* value, double min, double max);
  void Read(const char* key, std::vector<std::string>* value, std::size_t max_items);

  template <typename Enum>
  void Read(const char* key, Enum* value,
            const std::vector<std::pair<const char*, Enum>>& alternatives) {
    const nlohmann::json* found = Find(key);
    if (found == nullptr) return;
    std::vector<std::string> names;
    for (const auto& [text, alternative] : alternatives) {
      if (found->is_string() && found->get_ref<const std::string&>() == text) {
        *value = alternative;
        return;
      }
      names.emplace_back(text);
    }
    FailChoice(key, *found, names);
  }

 private:
  void FailChoice(const char* key, const nlohmann::json& found,
                  const std::vector<std::string>& names);

  const nlohmann::json& json_;
  std::string path_;
  Status* error_;
};

}  // namespace widestream::job_internal
