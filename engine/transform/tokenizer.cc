#include "engine/transform/tokenizer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "engine/transform/bpe.h"
#include "engine/transform/encoder.h"
#include "engine/transform/hash128.h"
#include "engine/transform/pretokenizer.h"
#include "engine/transform/vocabulary.h"

namespace widestream {
namespace {

using internal::Bpe;
using internal::Pattern;
using internal::Vocabulary;

Result<std::optional<Pattern>> ParsePattern(const std::string& name) {
  if (name.empty()) return std::optional<Pattern>();
  if (const std::optional<Pattern> pattern = internal::PatternOfName(name)) return pattern;
  return Status::InvalidArgument("tokenizer pattern " + internal::Quoted(name) +
                                 " is not known; use " + internal::PatternNames() +
                                 ", or leave it out to take it from the file");
}

Status TooLarge(const std::string& name, std::uint64_t bytes) {
  return Status::ResourceExhausted(name + ": the tokenizer file has " + std::to_string(bytes) +
                                   " bytes, more than the limit of " +
                                   std::to_string(internal::kMaxTokenizerFileBytes) +
                                   "; the largest published vocabularies have about 33 MB, so this "
                                   "is probably another file");
}

Result<std::string> ReadFile(const std::string& path) {
  // Non-blocking so that a named pipe in the file's place cannot hang the caller.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Status::NotFound("tokenizer file " + path + " does not exist; check the path");
    }
    return Status::IoError("cannot open the tokenizer file " + path, errno);
  }
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return Status::IoError("cannot stat " + path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status::InvalidArgument("tokenizer file " + path +
                                   " is not a regular file; give the path of a .tiktoken file or "
                                   "a tokenizer.json");
  }
  if (static_cast<std::uint64_t>(info.st_size) > internal::kMaxTokenizerFileBytes) {
    return TooLarge(path, static_cast<std::uint64_t>(info.st_size));
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n = ::read(fd, bytes.data() + filled, bytes.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::IoError("cannot read the tokenizer file " + path, errno);
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  bytes.resize(filled);
  return bytes;
}

std::string ContentDigest(const Vocabulary& vocabulary) {
  internal::Hash128 hash;
  hash.AddString("widestream tokenizer 1");
  hash.AddString(internal::PatternName(vocabulary.pattern));
  hash.AddInteger(vocabulary.merge_by_id ? 1 : 0);
  hash.AddInteger(vocabulary.whole_words_first ? 1 : 0);
  hash.AddInteger(vocabulary.tokens.size());
  for (const std::string& token : vocabulary.tokens) hash.AddString(token);
  hash.AddInteger(vocabulary.merges.size());
  for (const internal::Merge& merge : vocabulary.merges) {
    hash.AddInteger(merge.left);
    hash.AddInteger(merge.right);
    hash.AddInteger(merge.merged);
  }
  for (const auto& [name, id] : vocabulary.special_tokens) {
    hash.AddString(name);
    hash.AddInteger(id);
  }
  return hash.Hex();
}

}  // namespace

class Tokenizer::Implementation {
 public:
  Implementation(std::unique_ptr<const Bpe> bpe, Pattern pattern,
                 std::map<std::string, std::uint32_t> special_tokens, std::string digest)
      : bpe_(std::move(bpe)),
        pattern_(pattern),
        special_tokens_(std::move(special_tokens)),
        digest_(std::move(digest)) {
    size_ = bpe_->TokenCount();
    for (const auto& [name, id] : special_tokens_) {
      special_names_[id] = &name;
      size_ = std::max(size_, id + 1);
    }
    encoder_ = std::make_unique<const internal::Encoder>(bpe_.get(), pattern_, internal::BestIsa(),
                                                         size_ <= 65536);
  }

  // The bytes of an id; nothing when it is not in the vocabulary.
  std::optional<std::string_view> BytesOf(std::uint32_t id) const {
    if (id < bpe_->TokenCount() && !bpe_->TokenBytes(id).empty()) return bpe_->TokenBytes(id);
    const auto special = special_names_.find(id);
    if (special == special_names_.end()) return std::nullopt;
    return *special->second;
  }

  std::optional<std::uint32_t> IdOf(std::string_view bytes) const {
    const std::uint32_t id =
        bytes.empty()
            ? internal::kNoId
            : bpe_->FindToken(bytes.data(), bytes.size(), bpe_->HashOf(bytes.data(), bytes.size()));
    if (id == internal::kNoId) return std::nullopt;
    return id;
  }

  template <typename Id>
  Status Decode(std::span<const Id> ids, std::string* bytes) const {
    const std::size_t size_before = bytes->size();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::optional<std::string_view> token = BytesOf(ids[i]);
      if (!token) {
        bytes->resize(size_before);
        return Status::InvalidArgument(
            "cannot decode: id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
            " is not in the vocabulary, whose ids are below " + std::to_string(size_) +
            "; were the ids made with another tokenizer?");
      }
      bytes->append(*token);
    }
    return Status::Ok();
  }

  Status EncodeWithSpecials(std::string_view text, const EncodeOptions& options,
                            const Tokenizer& tokenizer, std::vector<std::uint32_t>* ids) const {
    const auto& known = special_tokens_;
    const auto included = [](const SpecialTokenSet& set, const std::string& name) {
      return set.all || std::find(set.names.begin(), set.names.end(), name) != set.names.end();
    };
    for (const SpecialTokenSet* set : {&options.allowed_special, &options.disallowed_special}) {
      for (const std::string& name : set->names) {
        if (known.count(name) != 0) continue;
        return Status::InvalidArgument("the tokenizer has no special token " +
                                       internal::Quoted(name));
      }
    }
    while (!text.empty()) {
      std::size_t first = text.size();
      const std::pair<const std::string, std::uint32_t>* token = nullptr;
      bool allowed = false;
      for (const auto& entry : known) {
        const bool allow = included(options.allowed_special, entry.first);
        if (!allow && !included(options.disallowed_special, entry.first)) continue;
        const std::size_t at = text.find(entry.first);
        if (at > first || at == std::string_view::npos) continue;
        if (at == first && entry.first.size() < token->first.size()) continue;
        first = at;
        token = &entry;
        allowed = allow;
      }
      if (token != nullptr && !allowed) {
        return Status::InvalidArgument(
            "the text has the special token " + internal::Quoted(token->first) + " at byte " +
            std::to_string(first) + "; allow it, or do not disallow it to have it as text");
      }
      tokenizer.Encode(text.substr(0, first), ids);
      if (token == nullptr) break;
      ids->push_back(token->second);
      text.remove_prefix(first + token->first.size());
    }
    return Status::Ok();
  }

  Pattern pattern() const { return pattern_; }
  const std::map<std::string, std::uint32_t>& special_tokens() const { return special_tokens_; }
  std::uint32_t size() const { return size_; }
  const std::string& Digest() const { return digest_; }

  const internal::Encoder& encoder() const { return *encoder_; }

 private:
  std::unique_ptr<const Bpe> bpe_;
  Pattern pattern_;
  std::map<std::string, std::uint32_t> special_tokens_;
  std::string digest_;
  std::uint32_t size_ = 0;
  std::map<std::uint32_t, const std::string*> special_names_;
  std::unique_ptr<const internal::Encoder> encoder_;
};

Tokenizer::Tokenizer(std::unique_ptr<const Implementation> implementation)
    : implementation_(std::move(implementation)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromFile(const std::string& path,
                                                             const Options& options) {
  WS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  return FromBytes(bytes, path, options);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromBytes(
    std::string_view bytes, std::string_view file_name_for_messages, const Options& options) {
  const std::string name(file_name_for_messages);
  WS_ASSIGN_OR_RETURN(const std::optional<Pattern> pattern, ParsePattern(options.pattern));
  if (bytes.size() > internal::kMaxTokenizerFileBytes) return TooLarge(name, bytes.size());
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && bytes[first] == '{';
  WS_ASSIGN_OR_RETURN(Vocabulary vocabulary, json
                                                 ? internal::ReadTokenizerJson(bytes, name, pattern)
                                                 : internal::ReadTiktoken(bytes, name, pattern));
  std::string digest = ContentDigest(vocabulary);
  const Pattern found = vocabulary.pattern;
  std::map<std::string, std::uint32_t> special_tokens = std::move(vocabulary.special_tokens);
  WS_ASSIGN_OR_RETURN(std::unique_ptr<const Bpe> bpe,
                      Bpe::Make(std::move(vocabulary), name, internal::BestIsa()));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<const Implementation>(
      std::move(bpe), found, std::move(special_tokens), std::move(digest))));
}

void Tokenizer::Encode(std::string_view text, std::vector<std::uint32_t>* ids) const {
  IdBuffer<std::uint32_t> buffer;
  const internal::Encoder::Lease lease(&implementation_->encoder());
  internal::IdSink<std::uint32_t> sink{&buffer};
  implementation_->encoder().Encode(text, lease.cache(), &sink);
  ids->insert(ids->end(), buffer.ids().begin(), buffer.ids().end());
}

Status Tokenizer::Decode(std::span<const std::uint32_t> ids, std::string* bytes) const {
  return implementation_->Decode(ids, bytes);
}
Status Tokenizer::Decode(std::span<const std::uint16_t> ids, std::string* bytes) const {
  return implementation_->Decode(ids, bytes);
}

template <typename Id>
Status Tokenizer::DecodeBatch(std::span<const Id> ids, std::span<const std::uint64_t> ends,
                              std::string* bytes, std::vector<std::uint64_t>* byte_ends) const {
  const std::size_t bytes_before = bytes->size();
  const std::size_t ends_before = byte_ends->size();
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    Status status;
    if (ends[i] < begin || ends[i] > ids.size()) {
      status = Status::InvalidArgument("it ends at id " + std::to_string(ends[i]) +
                                       ", but begins at " + std::to_string(begin) + " of " +
                                       std::to_string(ids.size()) + "; give ascending ends");
    } else {
      status = Decode(ids.subspan(begin, ends[i] - begin), bytes);
    }
    if (!status.ok()) {
      bytes->resize(bytes_before);
      byte_ends->resize(ends_before);
      return status.WithContext("text " + std::to_string(i));
    }
    byte_ends->push_back(bytes->size());
    begin = ends[i];
  }
  return Status::Ok();
}
template Status Tokenizer::DecodeBatch(std::span<const std::uint16_t>,
                                       std::span<const std::uint64_t>, std::string*,
                                       std::vector<std::uint64_t>*) const;
template Status Tokenizer::DecodeBatch(std::span<const std::uint32_t>,
                                       std::span<const std::uint64_t>, std::string*,
                                       std::vector<std::uint64_t>*) const;

template <typename Id>
Status Tokenizer::Encode(std::string_view text, const EncodeOptions& options, IdBuffer<Id>* ids,
                         TokenOffsets* offsets) const {
  if (sizeof(Id) == 2 && !FitsUint16()) {
    return Status::InvalidArgument("the vocabulary has ids up to " +
                                   std::to_string(VocabularySize() - 1) +
                                   ", which 16 bits cannot hold; ask for 32-bit ids");
  }
  if (options.allowed_special.names.empty() && !options.allowed_special.all &&
      !options.disallowed_special.all && options.disallowed_special.names.empty() &&
      offsets == nullptr) {
    const internal::Encoder::Lease lease(&implementation_->encoder());
    internal::IdSink<Id> sink{ids};
    sink.most = options.max_tokens;
    implementation_->encoder().Encode(text, lease.cache(), &sink);
    return Status::Ok();
  }
  std::vector<std::uint32_t> found;
  WS_RETURN_IF_ERROR(implementation_->EncodeWithSpecials(text, options, *this, &found));
  if (found.size() > options.max_tokens) found.resize(options.max_tokens);
  ids->Reserve(found.size());
  std::copy(found.begin(), found.end(), ids->data() + ids->size());
  ids->SetSize(ids->size() + found.size());
  std::uint64_t at = 0;
  for (const std::uint32_t id : found) {
    if (offsets == nullptr) break;
    offsets->begin.push_back(at);
    at += TokenBytes(id)->size();
    offsets->end.push_back(at);
  }
  return Status::Ok();
}
template Status Tokenizer::Encode(std::string_view, const EncodeOptions&, IdBuffer<std::uint16_t>*,
                                  TokenOffsets*) const;
template Status Tokenizer::Encode(std::string_view, const EncodeOptions&, IdBuffer<std::uint32_t>*,
                                  TokenOffsets*) const;

template <typename Id>
Status Tokenizer::EncodeBatch(std::span<const std::string_view> texts, const EncodeOptions& options,
                              unsigned threads, IdBuffer<Id>* ids,
                              std::vector<std::uint64_t>* ends) const {
  const std::size_t ids_before = ids->size();
  const std::size_t ends_before = ends->size();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Status status = Encode(texts[i], options, ids);
    if (!status.ok()) {
      ids->SetSize(ids_before);
      ends->resize(ends_before);
      return status.WithContext("text " + std::to_string(i));
    }
    ends->push_back(ids->size());
  }
  return Status::Ok();
}
template Status Tokenizer::EncodeBatch(std::span<const std::string_view>, const EncodeOptions&,
                                       unsigned, IdBuffer<std::uint16_t>*,
                                       std::vector<std::uint64_t>*) const;
template Status Tokenizer::EncodeBatch(std::span<const std::string_view>, const EncodeOptions&,
                                       unsigned, IdBuffer<std::uint32_t>*,
                                       std::vector<std::uint64_t>*) const;

Result<std::uint64_t> Tokenizer::Count(std::string_view text, const EncodeOptions& options) const {
  const internal::Encoder::Lease lease(&implementation_->encoder());
  internal::IdSink<std::uint32_t> sink{nullptr};
  implementation_->encoder().Encode(text, lease.cache(), &sink);
  return sink.count;
}

const std::map<std::string, std::uint32_t>& Tokenizer::SpecialTokens() const {
  return implementation_->special_tokens();
}
std::optional<std::string_view> Tokenizer::TokenBytes(std::uint32_t id) const {
  return implementation_->BytesOf(id);
}
std::optional<std::uint32_t> Tokenizer::TokenId(std::string_view bytes) const {
  return implementation_->IdOf(bytes);
}
const char* Tokenizer::PatternName() const {
  return internal::PatternName(implementation_->pattern());
}

std::optional<std::uint32_t> Tokenizer::SpecialTokenId(std::string_view name) const {
  const auto& special_tokens = implementation_->special_tokens();
  const auto found = special_tokens.find(std::string(name));
  if (found == special_tokens.end()) return std::nullopt;
  return found->second;
}

std::uint32_t Tokenizer::VocabularySize() const { return implementation_->size(); }
const std::string& Tokenizer::Digest() const { return implementation_->Digest(); }

}  // namespace widestream
