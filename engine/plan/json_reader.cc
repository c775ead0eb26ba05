#include "engine/plan/json_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/format_text.h"

namespace widestream::plan_json {
namespace {

constexpr std::size_t kMaxDepth = 16;

// Position of the bracket that opens level kMaxDepth + 1, or npos. Strings are skipped.
std::size_t TooDeep(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return i;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return std::string_view::npos;
}

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                 std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Status::InvalidArgument(
        StrCat(what, " has ", text.size(), " bytes; at most ", max_bytes, " are read"));
  }
  if (const std::size_t at = TooDeep(text); at != std::string_view::npos) {
    return Status::InvalidArgument(
        StrCat(what, ", byte ", at, ": nested deeper than ", kMaxDepth, " levels"));
  }
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      if (!keys.empty()) keys.pop_back();
    } else if (event == Event::key && !keys.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && duplicate.empty()) duplicate = key + " ";
    }
    return true;
  };
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    return Status::InvalidArgument(StrCat(what, " is not valid JSON: ", Quoted(error.what(), 200)));
  }
  if (!duplicate.empty()) {
    duplicate.pop_back();
    return Status::InvalidArgument(
        StrCat(what, ": the key ", Quoted(duplicate), " occurs twice in an object"));
  }
  return document;
}

Status JsonValue::Wrong(std::string_view expected) const {
  return Status::InvalidArgument(
      StrCat(path_, ": expected ", expected, ", found ",
             value_->is_string()
                 ? Quoted(value_->get_ref<const std::string&>())
                 : (value_->is_structured() || value_->is_null() ? std::string(value_->type_name())
                                                                 : value_->dump())));
}

bool JsonValue::Has(std::string_view key) const {
  return value_->is_object() && value_->find(key) != value_->end();
}

Result<JsonValue> JsonValue::At(std::string_view key) const {
  if (!value_->is_object()) return Wrong("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) {
    return Status::InvalidArgument(StrCat(path_, ": the key ", Quoted(key), " is missing"));
  }
  return JsonValue(*found, path_.empty() ? std::string(key) : StrCat(path_, ".", key));
}

Status JsonValue::OnlyKeys(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) return Wrong("an object");
  for (const auto& item : value_->items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) != keys.end()) continue;
    std::string known;
    for (const std::string_view key : keys) StrAppend(known, known.empty() ? "" : ", ", key);
    return Status::InvalidArgument(
        StrCat(path_, ": unknown key ", Quoted(item.key()), "; known are ", known));
  }
  return Status::Ok();
}

Result<std::vector<JsonValue>> JsonValue::Items() const {
  if (!value_->is_array()) return Wrong("an array");
  std::vector<JsonValue> items;
  items.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    items.emplace_back((*value_)[i], StrCat(path_, "[", i, "]"));
  }
  return items;
}

Result<std::vector<std::pair<std::string, JsonValue>>> JsonValue::Entries() const {
  if (!value_->is_object()) return Wrong("an object");
  std::vector<std::pair<std::string, JsonValue>> entries;
  entries.reserve(value_->size());
  for (const auto& item : value_->items()) {
    entries.emplace_back(item.key(), JsonValue(item.value(), StrCat(path_, ".", item.key())));
  }
  return entries;
}

Result<std::uint64_t> JsonValue::Unsigned(std::uint64_t max) const {
  if (!value_->is_number_integer() ||
      (!value_->is_number_unsigned() && value_->get<std::int64_t>() < 0) ||
      value_->get<std::uint64_t>() > max) {
    return Wrong(StrCat("an integer from 0 to ", max));
  }
  return value_->get<std::uint64_t>();
}

Result<std::int64_t> JsonValue::Signed(std::int64_t min, std::int64_t max) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() ||
                     value_->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  if (!fits || value_->get<std::int64_t>() < min || value_->get<std::int64_t>() > max) {
    return Wrong(StrCat("an integer from ", min, " to ", max));
  }
  return value_->get<std::int64_t>();
}

Result<double> JsonValue::Number() const {
  if (!value_->is_number()) return Wrong("a number");
  return value_->get<double>();
}

Result<bool> JsonValue::Boolean() const {
  if (!value_->is_boolean()) return Wrong("true or false");
  return value_->get<bool>();
}

Result<std::string> JsonValue::Text(std::size_t max_bytes) const {
  if (!value_->is_string() || value_->get_ref<const std::string&>().size() > max_bytes) {
    return Wrong(StrCat("a string of at most ", max_bytes, " bytes"));
  }
  return value_->get<std::string>();
}

}  // namespace widestream::plan_json
