// Reads tokenizer.json, the Hugging Face layout, as far as it describes plain byte-level BPE. Every
// field is either understood or refused by name: a setting that is skipped would change ids
// silently.
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "engine/transform/vocabulary.h"

namespace widestream::internal {
namespace {

constexpr char kRefusal[] =
    "; Widestream refuses what would change ids (outside of jobs, widestream.Tokenizer and "
    "`widestream tokenize` take SentencePiece-style files through the tokenizers package, slowly)";

using simdjson::dom::element;
using FieldMap = std::map<std::string_view, element>;

// Where nlohmann's parser stops on bytes that simdjson refused without saying where.
std::string JsonErrorPosition(std::string_view bytes) {
  struct Sax : nlohmann::json_sax<nlohmann::json> {
    std::string message;
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(std::size_t) override { return true; }
    bool key(string_t&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t, const std::string&,
                     const nlohmann::json::exception& error) override {
      message = error.what();
      return false;
    }
  } sax;
  nlohmann::json::sax_parse(bytes.begin(), bytes.end(), &sax);
  return sax.message;
}

std::string Describe(const element& value) {
  std::string text = simdjson::minify(value);
  constexpr std::size_t kShown = 80;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

// The GPT-2 byte alphabet: code point -> byte, -1 for a character outside it. Printable Latin-1
// bytes are drawn as themselves, the others as U+0100 and on in order.
std::array<std::int16_t, 0x144> MakeByteAlphabet() {
  std::array<std::int16_t, 0x144> bytes{};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    bytes[printable ? static_cast<std::size_t>(b) : next++] = static_cast<std::int16_t>(b);
  }
  return bytes;
}

// False when a character is outside the byte alphabet. `text` is valid UTF-8.
bool DecodeByteAlphabet(std::string_view text, std::string* bytes) {
  static const std::array<std::int16_t, 0x144> alphabet = MakeByteAlphabet();
  bytes->clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0xE0) return false;
    if (code_point >= 0xC0) {
      code_point = ((code_point & 0x1F) << 6) | (static_cast<unsigned char>(text[++i]) & 0x3FU);
    }
    if (code_point >= alphabet.size() || alphabet[code_point] < 0) return false;
    *bytes += static_cast<char>(alphabet[code_point]);
  }
  return true;
}

class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(const std::string& name) : name_(name) {}

  Result<Vocabulary> Read(const element& root, std::optional<Pattern> pattern) {
    WS_ASSIGN_OR_RETURN(FieldMap fields,
                        Fields(root, "the file",
                               {"version", "truncation", "padding", "added_tokens", "normalizer",
                                "pre_tokenizer", "post_processor", "decoder", "model"}));
    for (const char* key : {"truncation", "padding"}) {
      WS_RETURN_IF_ERROR(RequireNull(fields, "", key));
    }
    vocabulary_.special_tokens_hide = true;
    if (fields.count("normalizer") != 0 && !fields["normalizer"].is_null()) {
      WS_RETURN_IF_ERROR(ReadNormalizer(fields["normalizer"], "normalizer"));
    }
    WS_RETURN_IF_ERROR(ReadPreTokenizer(fields));
    if (pattern && !SamePattern(*pattern, vocabulary_.pattern)) {
      return Error("pre_tokenizer",
                   std::string("the file's pattern is \"") + PatternName(vocabulary_.pattern) +
                       "\", not \"" + PatternName(*pattern) + "\" as asked; leave the pattern out");
    }
    if (fields.count("post_processor") != 0 && !fields["post_processor"].is_null()) {
      WS_RETURN_IF_ERROR(ReadPostProcessor(fields["post_processor"], "post_processor"));
    }
    if (fields.count("decoder") != 0 && !fields["decoder"].is_null()) {
      WS_RETURN_IF_ERROR(RequireByteLevelDecoder(fields["decoder"]));
    }
    if (fields.count("added_tokens") != 0) {
      WS_RETURN_IF_ERROR(ReadAddedTokens(fields["added_tokens"]));
    }
    if (fields.count("model") == 0) return Error("model", "missing");
    WS_RETURN_IF_ERROR(ReadModel(fields["model"]));
    for (const auto& [id, where] : template_ids_) {
      if (token_of_id_.count(id) == 0) {
        return Error(where, "no token has the id " + std::to_string(id));
      }
    }
    WS_RETURN_IF_ERROR(CheckVocabulary(vocabulary_, name_));
    return std::move(vocabulary_);
  }

 private:
  Status Error(const std::string& where, const std::string& what) const {
    return Status::InvalidArgument(name_ + ": " + where + ": " + what);
  }
  Status Unsupported(const std::string& where, const element& value,
                     const std::string& supported) const {
    return Error(where, Describe(value) + " is not supported, only " + supported + kRefusal);
  }

  // Asked for "cl100k": either form of its white space rule is what the file says.
  static bool SamePattern(Pattern asked, Pattern found) {
    const auto plain = [](Pattern p) {
      return p == Pattern::kCl100k ? Pattern::kCl100kLineEnd : p;
    };
    return plain(asked) == plain(found);
  }

  // The fields of an object; an error for other values, repeated keys and keys not in `known`.
  Result<FieldMap> Fields(const element& value, const std::string& where,
                          std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) return Error(where, "expected an object, found " + Describe(value));
    FieldMap fields;
    const simdjson::dom::object object = value.get_object().value_unsafe();
    for (const auto field : object) {
      if (std::find(known.begin(), known.end(), field.key) == known.end()) {
        return Error(where, "the field " + Quoted(field.key) + " = " + Describe(field.value) +
                                " is not known; Widestream refuses what may change ids");
      }
      if (!fields.emplace(field.key, field.value).second) {
        return Error(where, "the field " + Quoted(field.key) + " is there twice");
      }
    }
    return fields;
  }

  Status RequireNull(const FieldMap& fields, const std::string& where, const char* key) const {
    const auto found = fields.find(key);
    if (found == fields.end() || found->second.is_null()) return Status::Ok();
    return Unsupported(where + key, found->second, "null");
  }
  Status RequireNullOrEmpty(const FieldMap& fields, const std::string& where,
                            const char* key) const {
    const auto found = fields.find(key);
    if (found == fields.end() || found->second.is_null()) return Status::Ok();
    if (found->second.is_string() && found->second.get_string().value_unsafe().empty()) {
      return Status::Ok();
    }
    return Unsupported(where + key, found->second, "null");
  }
  Result<bool> Boolean(const FieldMap& fields, const std::string& where, const char* key,
                       bool missing) const {
    const auto found = fields.find(key);
    if (found == fields.end() || found->second.is_null()) return missing;
    if (!found->second.is_bool()) {
      return Error(where + key, "expected true or false, found " + Describe(found->second));
    }
    return found->second.get_bool().value_unsafe();
  }
  Status RequireBoolean(const FieldMap& fields, const std::string& where, const char* key,
                        bool missing, bool wanted) const {
    WS_ASSIGN_OR_RETURN(const bool value, Boolean(fields, where, key, missing));
    if (value == wanted) return Status::Ok();
    return Error(where + key, std::string(value ? "true" : "false") + " is not supported, only " +
                                  (wanted ? "true" : "false") + kRefusal);
  }
  static std::string TypeOf(const element& value) {
    std::string_view type;
    if (value["type"].get_string().get(type) != simdjson::SUCCESS) return "";
    return std::string(type);
  }

  Status ReadByteLevel(const element& value, const std::string& where, bool use_regex) const {
    WS_ASSIGN_OR_RETURN(
        const FieldMap fields,
        Fields(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    WS_RETURN_IF_ERROR(RequireBoolean(fields, where + ".", "add_prefix_space", true, false));
    return RequireBoolean(fields, where + ".", "use_regex", true, use_regex);
  }

  Status ReadNormalizer(const element& value, const std::string& where) {
    const std::string type = TypeOf(value);
    if (type == "NFC") {
      vocabulary_.normalize_nfc = true;
      return Status::Ok();
    }
    simdjson::dom::array parts;
    if (type != "Sequence" || value["normalizers"].get_array().get(parts) != simdjson::SUCCESS) {
      return Unsupported(where, value, "null, NFC or a Sequence of these");
    }
    std::size_t index = 0;
    for (const element part : parts) {
      WS_RETURN_IF_ERROR(
          ReadNormalizer(part, where + ".normalizers[" + std::to_string(index++) + "]"));
    }
    return Status::Ok();
  }

  Status ReadPreTokenizer(const FieldMap& root) {
    const std::string where = "pre_tokenizer";
    const std::string supported =
        "ByteLevel, or a Sequence of Split (the published regexes) and ByteLevel";
    const auto found = root.find(where);
    if (found == root.end()) return Error(where, "missing; expected " + supported);
    const element& value = found->second;
    if (TypeOf(value) == "ByteLevel") {
      vocabulary_.pattern = Pattern::kGpt2;
      return ReadByteLevel(value, where, true);
    }
    if (TypeOf(value) != "Sequence") return Unsupported(where, value, supported);
    WS_ASSIGN_OR_RETURN(FieldMap fields, Fields(value, where, {"type", "pretokenizers"}));
    simdjson::dom::array array;
    if (fields.count("pretokenizers") == 0 ||
        fields["pretokenizers"].get_array().get(array) != simdjson::SUCCESS) {
      return Unsupported(where, value, supported);
    }
    const std::vector<element> parts(array.begin(), array.end());
    const auto at = [&where](std::size_t i) {
      return where + ".pretokenizers[" + std::to_string(i) + "]";
    };
    if (parts.empty() || TypeOf(parts.back()) != "ByteLevel") {
      return Unsupported(where, value, supported);
    }
    std::vector<std::string_view> regexes;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      if (TypeOf(parts[i]) != "Split") return Unsupported(where, value, supported);
      WS_ASSIGN_OR_RETURN(const std::string_view regex, ReadSplit(parts[i], at(i)));
      regexes.push_back(regex);
    }
    WS_RETURN_IF_ERROR(ReadByteLevel(parts.back(), at(parts.size() - 1), regexes.empty()));
    if (regexes.empty()) {
      vocabulary_.pattern = Pattern::kGpt2;
      return Status::Ok();
    }
    if (regexes.size() == 3 && IsDeepSeek3Regex(0, regexes[0]) && IsDeepSeek3Regex(1, regexes[1]) &&
        IsDeepSeek3Regex(2, regexes[2])) {
      vocabulary_.pattern = Pattern::kDeepSeek3;
      return Status::Ok();
    }
    const std::optional<Pattern> pattern = PatternOfRegex(regexes[0]);
    if (!pattern || regexes.size() != 1) {
      const std::size_t named = regexes.size() == 1 || !pattern ? 0 : 1;
      return Error(at(named) + ".pattern",
                   "the regex " + Quoted(regexes[named]) +
                       " is not supported here, only the exact published ones of gpt2, cl100k, "
                       "o200k, llama3, qwen2 and the three of deepseek3");
    }
    vocabulary_.pattern = *pattern;
    return Status::Ok();
  }

  Result<std::string_view> ReadSplit(const element& value, const std::string& where) {
    WS_ASSIGN_OR_RETURN(FieldMap fields,
                        Fields(value, where, {"type", "pattern", "behavior", "invert"}));
    std::string_view behavior;
    if (fields.count("behavior") == 0 || fields["behavior"].get_string().get(behavior) ||
        behavior != "Isolated") {
      return Unsupported(where, value, "\"behavior\": \"Isolated\"");
    }
    WS_RETURN_IF_ERROR(RequireBoolean(fields, where + ".", "invert", false, false));
    std::string_view regex;
    if (fields.count("pattern") == 0 || fields["pattern"]["Regex"].get_string().get(regex)) {
      return Unsupported(where, value, "\"pattern\": {\"Regex\": ...}");
    }
    return regex;
  }

  Status ReadPostProcessor(const element& value, const std::string& where) {
    const std::string type = TypeOf(value);
    if (type == "ByteLevel") return Status::Ok();
    if (type == "TemplateProcessing") return ReadTemplate(value, where);
    simdjson::dom::array parts;
    if (type != "Sequence" || value["processors"].get_array().get(parts) != simdjson::SUCCESS) {
      return Unsupported(where, value,
                         "null, ByteLevel, TemplateProcessing or a Sequence of these");
    }
    std::size_t index = 0;
    bool templated = false;
    for (const element part : parts) {
      const std::string at = where + ".processors[" + std::to_string(index++) + "]";
      if (templated && TypeOf(part) == "TemplateProcessing") {
        return Unsupported(at, part, "one TemplateProcessing");
      }
      templated = templated || TypeOf(part) == "TemplateProcessing";
      WS_RETURN_IF_ERROR(ReadPostProcessor(part, at));
    }
    return Status::Ok();
  }

  // "single": what stands around one text. The form for pairs of texts is of no use here.
  Status ReadTemplate(const element& value, const std::string& where) {
    WS_ASSIGN_OR_RETURN(FieldMap fields,
                        Fields(value, where, {"type", "single", "pair", "special_tokens"}));
    simdjson::dom::array pieces;
    if (fields.count("single") == 0 || fields["single"].get_array().get(pieces)) {
      return Error(where + ".single", "expected an array");
    }
    bool behind = false;
    std::size_t index = 0;
    for (const element piece : pieces) {
      const std::string at = where + ".single[" + std::to_string(index++) + "]";
      std::string_view name;
      if (piece["Sequence"]["id"].get_string().get(name) == simdjson::SUCCESS) {
        if (name != "A" || behind) return Unsupported(at, piece, "one sequence, \"A\"");
        behind = true;
        continue;
      }
      simdjson::dom::array ids;
      if (piece["SpecialToken"]["id"].get_string().get(name) ||
          fields.count("special_tokens") == 0 ||
          fields["special_tokens"][name]["ids"].get_array().get(ids)) {
        return Error(at, Describe(piece) + " is neither a sequence nor a token of special_tokens");
      }
      for (const element value_of_id : ids) {
        WS_ASSIGN_OR_RETURN(const std::uint32_t id, Id(value_of_id, at));
        (behind ? vocabulary_.ids_after : vocabulary_.ids_before).push_back(id);
        template_ids_.emplace_back(id, at);
      }
    }
    if (!behind) return Error(where + ".single", "has no sequence \"A\", so it drops the text");
    return Status::Ok();
  }

  Status RequireByteLevelDecoder(const element& value) const {
    if (TypeOf(value) == "ByteLevel") return Status::Ok();
    return Unsupported("decoder", value, "null or ByteLevel");
  }

  Result<std::uint32_t> Id(const element& value, const std::string& where) const {
    std::uint64_t id = 0;
    if (value.get_uint64().get(id) != simdjson::SUCCESS || id > kMaxTokenId) {
      return Error(where, "the id " + Describe(value) + " is not a whole number from 0 to " +
                              std::to_string(kMaxTokenId));
    }
    return static_cast<std::uint32_t>(id);
  }

  Status ReadAddedTokens(const element& value) {
    simdjson::dom::array tokens;
    if (value.get_array().get(tokens) != simdjson::SUCCESS) {
      return Error("added_tokens", "expected an array, found " + Describe(value));
    }
    std::size_t index = 0;
    for (const element token : tokens) {
      const std::string where = "added_tokens[" + std::to_string(index++) + "]";
      WS_ASSIGN_OR_RETURN(FieldMap fields, Fields(token, where,
                                                  {"id", "content", "single_word", "lstrip",
                                                   "rstrip", "normalized", "special"}));
      std::string_view content;
      if (fields.count("content") == 0 || fields["content"].get_string().get(content) ||
          content.empty() || content.size() > kMaxTokenBytes) {
        return Error(where, "expected \"content\" to be a string of 1 to " +
                                std::to_string(kMaxTokenBytes) + " bytes");
      }
      AddedToken added_token;
      WS_ASSIGN_OR_RETURN(added_token.special, Boolean(fields, where + ".", "special", false));
      WS_ASSIGN_OR_RETURN(added_token.strip_left, Boolean(fields, where + ".", "lstrip", false));
      WS_ASSIGN_OR_RETURN(added_token.strip_right, Boolean(fields, where + ".", "rstrip", false));
      WS_ASSIGN_OR_RETURN(added_token.normalized,
                          Boolean(fields, where + ".", "normalized", !added_token.special));
      WS_RETURN_IF_ERROR(RequireBoolean(fields, where + ".", "single_word", false, false));
      if (fields.count("id") == 0) return Error(where, "\"id\" is missing");
      WS_ASSIGN_OR_RETURN(const std::uint32_t id, Id(fields["id"], where + ".id"));
      if (!added_ids_.emplace(content, id).second) {
        return Error(where, Quoted(content) + " is there twice");
      }
      added_token.name = std::string(content);
      added_token.id = id;
      if (added_token.special) vocabulary_.special_tokens.emplace(content, id);
      vocabulary_.added_tokens.push_back(std::move(added_token));
      if (const auto [other, added] = token_of_id_.emplace(id, content); !added) {
        return Error(
            where, "the id " + std::to_string(id) + " is already that of " + Quoted(other->second));
      }
    }
    return Status::Ok();
  }

  Status ReadModel(const element& value) {
    WS_ASSIGN_OR_RETURN(
        FieldMap fields,
        Fields(value, "model",
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    if (fields.count("type") != 0 && TypeOf(value) != "BPE") {
      return Unsupported("model.type", fields["type"], "\"BPE\"");
    }
    for (const char* key : {"dropout", "unk_token"}) {
      WS_RETURN_IF_ERROR(RequireNull(fields, "model.", key));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      WS_RETURN_IF_ERROR(RequireNullOrEmpty(fields, "model.", key));
    }
    for (const char* key : {"fuse_unk", "byte_fallback"}) {
      WS_RETURN_IF_ERROR(RequireBoolean(fields, "model.", key, false, false));
    }
    WS_ASSIGN_OR_RETURN(vocabulary_.whole_words_first,
                        Boolean(fields, "model.", "ignore_merges", false));
    for (const char* key : {"vocab", "merges"}) {
      if (fields.count(key) == 0) return Error(std::string("model.") + key, "missing");
    }
    WS_RETURN_IF_ERROR(ReadVocab(fields["vocab"]));
    return ReadMerges(fields["merges"]);
  }

  Status ReadVocab(const element& value) {
    const std::string where = "model.vocab";
    if (!value.is_object()) return Error(where, "expected an object, found " + Describe(value));
    std::unordered_set<std::string_view> texts;
    std::vector<std::pair<std::uint32_t, std::string>> entries;
    std::size_t total_bytes = 0;
    std::uint32_t largest = 0;
    const simdjson::dom::object object = value.get_object().value_unsafe();
    for (const auto field : object) {
      WS_ASSIGN_OR_RETURN(const std::uint32_t id, Id(field.value, where + "." + Quoted(field.key)));
      if (!texts.insert(field.key).second) {
        return Error(where, "the token " + Quoted(field.key) + " is there twice");
      }
      const auto special = added_ids_.find(std::string(field.key));
      if (special != added_ids_.end()) {
        if (special->second == id) continue;
        return Error(where, Quoted(field.key) + " has id " + std::to_string(id) + " here and " +
                                std::to_string(special->second) + " in added_tokens");
      }
      std::string bytes;
      if (!DecodeByteAlphabet(field.key, &bytes) || bytes.empty()) {
        return Error(where, "the token " + Quoted(field.key) + " (id " + std::to_string(id) +
                                ") is empty or has a character outside the byte-level alphabet; is "
                                "this a byte-level BPE vocabulary?");
      }
      total_bytes += bytes.size();
      if (bytes.size() > kMaxTokenBytes || total_bytes > kMaxVocabularyBytes) {
        return Error(where, "at the token " + Quoted(field.key) + ": a token may have " +
                                std::to_string(kMaxTokenBytes) + " bytes and all together " +
                                std::to_string(kMaxVocabularyBytes));
      }
      if (const auto [other, added] = token_of_id_.emplace(id, field.key); !added) {
        return Error(where, "the tokens " + Quoted(other->second) + " and " + Quoted(field.key) +
                                " both have the id " + std::to_string(id));
      }
      largest = std::max(largest, id);
      entries.emplace_back(id, std::move(bytes));
    }
    // Tells a gap before the largest id sets the size of a table.
    for (std::uint32_t id = 0; !entries.empty() && id < largest; ++id) {
      if (token_of_id_.count(id) != 0) continue;
      return Error(where, "no token has id " + std::to_string(id) + " though " +
                              Quoted(token_of_id_[largest]) + " has id " + std::to_string(largest) +
                              "; ids must run from 0 without a gap");
    }
    vocabulary_.tokens.resize(entries.empty() ? 0 : largest + 1);
    for (auto& [id, bytes] : entries) {
      id_of_bytes_.emplace(bytes, id);
      vocabulary_.tokens[id] = std::move(bytes);
    }
    return Status::Ok();
  }

  Status ReadMerges(const element& value) {
    const std::string where = "model.merges";
    simdjson::dom::array merges;
    if (value.get_array().get(merges) != simdjson::SUCCESS) {
      return Error(where, "expected an array, found " + Describe(value));
    }
    std::size_t index = 0;
    for (const element merge : merges) {
      const std::string at = where + "[" + std::to_string(index++) + "]";
      std::string_view left;
      std::string_view right;
      if (!SplitMerge(merge, &left, &right)) {
        return Error(at,
                     "expected \"left right\" or [\"left\", \"right\"], found " + Describe(merge));
      }
      std::string bytes[3];
      std::uint32_t ids[3];
      if (!DecodeByteAlphabet(left, &bytes[0]) || !DecodeByteAlphabet(right, &bytes[1])) {
        return Error(at, Describe(merge) + " has a character outside the byte-level alphabet");
      }
      bytes[2] = bytes[0] + bytes[1];
      for (int i = 0; i < 3; ++i) {
        const auto found = id_of_bytes_.find(bytes[i]);
        if (found == id_of_bytes_.end()) {
          constexpr const char* kRoles[] = {"left part", "right part", "result"};
          return Error(at, std::string("the ") + kRoles[i] + " of " + Describe(merge) +
                               " is not a token of model.vocab (special tokens apart)");
        }
        ids[i] = found->second;
      }
      vocabulary_.merges.push_back({ids[0], ids[1], ids[2]});
    }
    return Status::Ok();
  }

  static bool SplitMerge(const element& merge, std::string_view* left, std::string_view* right) {
    std::string_view text;
    simdjson::dom::array pair;
    if (merge.get_string().get(text) == simdjson::SUCCESS) {
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos) return false;
      *left = text.substr(0, space);
      *right = text.substr(space + 1);
    } else if (merge.get_array().get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
               pair.at(0).get_string().get(*left) != simdjson::SUCCESS ||
               pair.at(1).get_string().get(*right) != simdjson::SUCCESS) {
      return false;
    }
    return !left->empty() && !right->empty();
  }

  const std::string& name_;
  Vocabulary vocabulary_;
  std::vector<std::pair<std::uint32_t, std::string>> template_ids_;
  std::unordered_map<std::string, std::uint32_t> added_ids_;
  std::unordered_map<std::uint32_t, std::string_view> token_of_id_;
  std::unordered_map<std::string, std::uint32_t> id_of_bytes_;
};

}  // namespace

Result<Vocabulary> ReadTokenizerJson(std::string_view bytes, const std::string& name,
                                     std::optional<Pattern> pattern) {
  simdjson::dom::parser parser;
  element root;
  const simdjson::error_code error = parser.parse(bytes.data(), bytes.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return Status::InvalidArgument(name + ": not valid JSON (" + simdjson::error_message(error) +
                                   "): " + JsonErrorPosition(bytes) +
                                   ". The file is cut or damaged: get it again");
  }
  return TokenizerJsonReader(name).Read(root, pattern);
}

}  // namespace widestream::internal
