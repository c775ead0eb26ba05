#include "engine/formats/json_text.h"

#include <simdjson.h>

#include <utility>

#include "engine/formats/names.h"

namespace widestream {
namespace {

constexpr std::size_t kSmallLineBytes = 1U << 20;
constexpr std::size_t kFirstCapacityBytes = 16U << 10;
constexpr std::size_t kKeysNamed = 8;

const char* TypeName(simdjson::dom::element_type type) {
  switch (type) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::INT64:
    case simdjson::dom::element_type::UINT64:
    case simdjson::dom::element_type::DOUBLE:
      return "a number";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
  }
  return "of an unknown type";
}

std::string ParseError(simdjson::error_code code) {
  switch (code) {
    case simdjson::UTF8_ERROR:
      return "invalid UTF-8";
    case simdjson::DEPTH_ERROR:
      return "invalid JSON: nested more than " + std::to_string(JsonTextExtractor::kMaxJsonDepth) +
             " deep";
    case simdjson::NUMBER_ERROR:
      return "invalid JSON: a number is malformed or out of range";
    case simdjson::STRING_ERROR:
      return "invalid JSON: a string holds an invalid escape";
    case simdjson::UNESCAPED_CHARS:
      return "invalid JSON: a string holds an unescaped control character";
    case simdjson::UNCLOSED_STRING:
      return "invalid JSON: a string is not closed";
    case simdjson::MEMALLOC:
      return "no memory to parse it";
    default:
      return "invalid JSON";
  }
}

std::string MissingKey(const std::string& key, simdjson::dom::object object) {
  std::string error = "no key " + QuoteName(key) + " (";
  std::size_t count = 0;
  for (const auto field : object) {
    if (count == kKeysNamed) {
      error += ", ...";
      break;
    }
    error += (count++ == 0 ? "keys: " : ", ") + QuoteName(field.key);
  }
  return error + (count == 0 ? "no keys)" : ")");
}

}  // namespace

struct JsonTextExtractor::Parser {
  simdjson::dom::parser dom{kMaxLineBytes + 64};
};

JsonTextExtractor::JsonTextExtractor(std::string key) : key_(std::move(key)) {
  if (key_.find('.') != std::string::npos) {
    for (std::size_t at = 0; at <= key_.size();) {
      const std::size_t dot = std::min(key_.find('.', at), key_.size());
      path_.push_back(key_.substr(at, dot - at));
      at = dot + 1;
    }
  }
}

JsonTextExtractor::~JsonTextExtractor() = default;

bool JsonTextExtractor::Extract(std::string_view line, std::string_view* text, std::string* error) {
  if (line.substr(0, 3) == "\xef\xbb\xbf") {
    // Newer simdjson versions pass over it; what a line holds must not depend on the version.
    *error = "invalid JSON: a byte order mark inside the file";
    return false;
  }
  if (parser_ != nullptr && parser_->dom.capacity() > kSmallLineBytes) parser_.reset();
  if (parser_ == nullptr) {
    parser_ = std::make_unique<Parser>();
    const std::size_t capacity = line.size() > kSmallLineBytes ? line.size() : kFirstCapacityBytes;
    if (parser_->dom.allocate(capacity, kMaxJsonDepth) != simdjson::SUCCESS) {
      parser_.reset();
      *error = "no memory to parse it";
      return false;
    }
  }
  simdjson::dom::element root;
  const simdjson::error_code code =
      parser_->dom.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(root);
  if (code != simdjson::SUCCESS) {
    *error = ParseError(code);
    return false;
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    *error = std::string("it is ") + TypeName(root.type()) + ", not an object";
    return false;
  }
  simdjson::dom::element value;
  bool found = object.at_key(key_).get(value) == simdjson::SUCCESS;
  if (!found && !path_.empty()) {
    value = root;
    found = true;
    for (const std::string& part : path_) {
      simdjson::dom::object inner;
      if (value.get(inner) != simdjson::SUCCESS ||
          inner.at_key(part).get(value) != simdjson::SUCCESS) {
        found = false;
        break;
      }
    }
  }
  if (!found) {
    *error = MissingKey(key_, object);
    return false;
  }
  if (value.get(*text) != simdjson::SUCCESS) {
    *error = "key " + QuoteName(key_) + " is " + TypeName(value.type()) + ", not a string";
    return false;
  }
  // An escaped lone surrogate ("\udc00") can pass a parser and is no text.
  if (!simdjson::validate_utf8(text->data(), text->size())) {
    *error = "key " + QuoteName(key_) + " holds an escaped lone surrogate, which is no character";
    return false;
  }
  return true;
}

}  // namespace widestream
