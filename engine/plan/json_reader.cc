#include "engine/plan/json_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/format_text.h"

namespace widestream::plan_json {
namespace {

constexpr std::size_t kMaxDepth = 16;

// Looks through a text without keeping its values: nesting and repeated keys. (The parser's own
// callback takes quadratic time.)
class Checker final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return Open();
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    problem_ = StrCat("the key ", Quoted(name), " occurs twice in an object");
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem_ = StrCat("not valid JSON: ", Quoted(error.what(), 200));
    return false;
  }
  const std::string& problem() const { return problem_; }

 private:
  bool Open() {
    if (++depth_ <= kMaxDepth) return true;
    problem_ = StrCat("nested deeper than ", kMaxDepth, " levels");
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // of the open objects
  std::size_t depth_ = 0;
  std::string problem_;
};

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                 std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Status::InvalidArgument(
        StrCat(what, " has ", text.size(), " bytes; at most ", max_bytes, " are read"));
  }
  Checker checker;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) {
    return Status::InvalidArgument(StrCat(what, ": ", checker.problem()));
  }
  nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (document.is_discarded()) {
    return Status::Internal(StrCat(what, ": two passes over one JSON text differ"));
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
