// Reading JSON that may be hostile: bounded size and depth, no duplicate keys, typed access whose
// errors name the key by its path. Private to engine/plan.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace widestream::plan_json {

// InvalidArgument with `what` and the byte offset if the text is not one JSON value within the
// limits, or an object has a key twice.
Result<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                 std::size_t max_bytes);

// A value and where it is, for messages. Refers to the document, which must outlive it.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& raw() const { return *value_; }
  bool IsNull() const { return value_->is_null(); }
  bool Has(std::string_view key) const;

  // The entry of an object; InvalidArgument if this is no object or lacks the key.
  Result<JsonValue> At(std::string_view key) const;
  // InvalidArgument if this is no object, or one of its keys is not in `keys`.
  Status OnlyKeys(std::initializer_list<std::string_view> keys) const;
  // Entries of an array.
  Result<std::vector<JsonValue>> Items() const;
  // Entries of an object, in the order of the keys.
  Result<std::vector<std::pair<std::string, JsonValue>>> Entries() const;

  Result<std::uint64_t> Unsigned(std::uint64_t max = UINT64_MAX) const;
  Result<std::int64_t> Signed(std::int64_t min, std::int64_t max) const;
  Result<double> Number() const;
  Result<bool> Boolean() const;
  Result<std::string> Text(std::size_t max_bytes = 1 << 20) const;

  // "path: expected ..., found ...".
  Status Wrong(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace widestream::plan_json
