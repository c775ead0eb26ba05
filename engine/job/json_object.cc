#include "engine/job/json_object.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_set>

namespace widestream::job_internal {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxShownBytes = 60;

// Events of a first pass over the text, which allocates only the set of keys of open objects.
class Checker : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (keys_.back().insert(name).second) return true;
    message_ = "the key " + Quote(name) + " occurs twice in one object; keep one of them";
    return false;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const json::exception& error) override {
    message_ = "no valid JSON at byte " + std::to_string(position);
    if (!token.empty()) message_ += ", near " + Quote(token.substr(0, kMaxShownBytes));
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
    std::string_view what = error.what();
    const std::size_t space = what.find("] ");
    if (space != std::string_view::npos) what.remove_prefix(space + 2);
    message_ += " (" + std::string(what.substr(0, 200)) + ")";
    return false;
  }
  const std::string& message() const { return message_; }

 private:
  bool Open() {
    if (keys_.size() >= kMaxDepth) {
      message_ = "nested deeper than " + std::to_string(kMaxDepth) + " levels; no job is";
      return false;
    }
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> keys_;
  std::string message_;
};

std::string Fold(std::string_view word) {
  std::string folded;
  for (const char c : word) {
    if (c >= 'A' && c <= 'Z') {
      folded += static_cast<char>(c - 'A' + 'a');
    } else {
      folded += c == '-' ? '_' : c;
    }
  }
  return folded;
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::string Number(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

}  // namespace

std::string Quote(std::string_view text) {
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Describe(const json& value) {
  std::string shown;
  if (value.is_structured()) {
    return std::string(value.is_object() ? "an object" : "an array") + " of " +
           std::to_string(value.size());
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    shown = Quote(text.substr(0, kMaxShownBytes));
    return shown + (text.size() > kMaxShownBytes ? "... (a string)" : " (a string)");
  }
  return value.dump() + (value.is_number() ? "" : std::string(" (") + value.type_name() + ")");
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Names are short: a long word is no typing slip, and its distance costs time.
  if (word.size() > 128) return "";
  const std::string folded = Fold(word);
  std::size_t best = std::max<std::size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(candidate.size(), word.size());
    const std::size_t shorter = std::min(candidate.size(), word.size());
    if (longer - shorter >= best) continue;
    const std::size_t distance = EditDistance(folded, Fold(candidate));
    // A match that replaces every character is chance.
    if (distance < best && distance < longer) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string Hint(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  if (!nearest.empty()) return "; did you mean " + Quote(nearest) + "?";
  std::string list = "; valid: ";
  constexpr std::size_t kMaxListed = 20;
  for (std::size_t i = 0; i < std::min(candidates.size(), kMaxListed); ++i) {
    list += (i == 0 ? "" : ", ") + candidates[i];
  }
  if (candidates.size() > kMaxListed) {
    list += " and " + std::to_string(candidates.size() - kMaxListed) + " more";
  }
  return list;
}

Result<json> ParseStrict(std::string_view text) {
  if (text.size() > kMaxJsonBytes) {
    return Status::InvalidArgument(
        "job: " + std::to_string(text.size()) + " bytes of JSON, expected at most " +
        std::to_string(kMaxJsonBytes) + "; use globs instead of listing files");
  }
  Checker checker;
  if (!json::sax_parse(text, &checker)) {
    return Status::InvalidArgument("job: " + checker.message());
  }
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return Status::Internal("job: two passes over one JSON text differ");
  return value;
}

JsonObject::JsonObject(const json& value, std::string path, std::initializer_list<const char*> keys,
                       Status* error)
    : json_(value), path_(std::move(path)), error_(error) {
  if (!ok()) return;
  if (!json_.is_object()) {
    *error_ =
        Status::InvalidArgument((path_.empty() ? std::string("job") : path_) + ": found " +
                                Describe(json_) + ", expected an object (docs/formats/job.md)");
    return;
  }
  const std::vector<std::string> names(keys.begin(), keys.end());
  for (const auto& [key, ignored] : json_.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      Fail(key.substr(0, kMaxShownBytes), "unknown key" + Hint(key, names));
      return;
    }
  }
}

std::string JsonObject::Path(std::string_view key) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  path += key;
  return path;
}

void JsonObject::Fail(std::string_view key, const std::string& message) {
  if (ok()) *error_ = Status::InvalidArgument(Path(key) + ": " + message);
}

const json* JsonObject::Find(const char* key) const {
  if (!ok()) return nullptr;
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

const json* JsonObject::Require(const char* key, const char* what_to_write) {
  const json* found = Find(key);
  if (found == nullptr) Fail(key, std::string("missing; ") + what_to_write);
  return found;
}

void JsonObject::FailChoice(const char* key, const json& found,
                            const std::vector<std::string>& names) {
  std::string word = found.is_string() ? found.get<std::string>() : "";
  Fail(key, "found " + Describe(found) + Hint(word, names));
}

void JsonObject::Read(const char* key, std::string* value, std::size_t max_bytes) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_string()) {
    Fail(key, "found " + Describe(*found) + ", expected a string");
    return;
  }
  const auto& text = found->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    Fail(key, "found a string of " + std::to_string(text.size()) + " bytes, expected at most " +
                  std::to_string(max_bytes));
  } else if (text.find('\0') != std::string::npos) {
    Fail(key, "found a string with a NUL character; remove it");
  } else {
    *value = text;
  }
}

void JsonObject::Read(const char* key, bool* value) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (found->is_boolean()) {
    *value = found->get<bool>();
  } else {
    Fail(key, "found " + Describe(*found) + ", expected true or false");
  }
}

void JsonObject::Read(const char* key, std::uint64_t* value, std::uint64_t min, std::uint64_t max) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() >= min &&
      found->get<std::uint64_t>() <= max) {
    *value = found->get<std::uint64_t>();
  } else {
    Fail(key, "found " + Describe(*found) + ", expected a whole number from " +
                  std::to_string(min) + " to " + std::to_string(max));
  }
}

void JsonObject::Read(const char* key, std::uint32_t* value, std::uint32_t min, std::uint32_t max) {
  std::uint64_t wide = *value;
  Read(key, &wide, std::uint64_t{min}, std::uint64_t{max});
  if (ok()) *value = static_cast<std::uint32_t>(wide);
}

void JsonObject::Read(const char* key, double* value, double min, double max) {
  const json* found = Find(key);
  if (found == nullptr) return;
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (number >= min && number <= max) {
    *value = number == 0 ? 0.0 : number;  // -0 and 0 mean the same: one canonical form
  } else {
    Fail(key, "found " + Describe(*found) + ", expected a number from " + Number(min) + " to " +
                  Number(max));
  }
}

void JsonObject::Read(const char* key, std::vector<std::string>* value, std::size_t max_items) {
  const json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_array()) {
    Fail(key, "found " + Describe(*found) + ", expected an array of strings");
    return;
  }
  if (found->size() > max_items) {
    Fail(key, "found " + std::to_string(found->size()) + " items, expected at most " +
                  std::to_string(max_items));
    return;
  }
  value->clear();
  for (std::size_t i = 0; i < found->size(); ++i) {
    const json& item = (*found)[i];
    const std::string item_key = std::string(key) + "[" + std::to_string(i) + "]";
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kMaxStringBytes ||
        item.get_ref<const std::string&>().find('\0') != std::string::npos) {
      Fail(item_key, "found " + Describe(item) + ", expected a string of at most " +
                         std::to_string(kMaxStringBytes) + " bytes without NUL");
      return;
    }
    value->push_back(item.get<std::string>());
  }
}

}  // namespace widestream::job_internal
