#include "engine/transform/tokenizer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "engine/transform/bpe.h"
#include "engine/transform/hash128.h"
#include "engine/transform/pretokenizer.h"
#include "engine/transform/vocabulary.h"

namespace widestream {
namespace {

using internal::Bpe;
using internal::kNoId;
using internal::Pattern;
using internal::Vocabulary;
using internal::WordKey;

Result<std::optional<Pattern>> ParsePattern(const std::string& name) {
  if (name.empty()) return std::optional<Pattern>();
  if (name == "gpt2") return std::optional<Pattern>(Pattern::kGpt2);
  if (name == "cl100k") return std::optional<Pattern>(Pattern::kCl100k);
  return Status::InvalidArgument(
      "tokenizer pattern " + internal::Quoted(name) +
      " is not known; use \"gpt2\" (also for r50k), \"cl100k\", or leave "
      "it out to take it from the file");
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

// The ids of words merged lately, one cache of 1 MiB per thread that encodes. Natural text repeats
// its rare words; without this, merging them is half of the time. A slot is a cache line; a new
// word replaces the old one of its slot. Tokenizers share the cache: a slot names its owner.
class WordCache {
 public:
  static constexpr std::size_t kMaxIds = 10;
  struct alignas(64) Slot {
    WordKey key;
    std::uint32_t owner = 0;  // Implementation::serial; 0: empty
    std::uint32_t count = 0;
    std::uint32_t ids[kMaxIds] = {};
  };

  static Slot* OfThisThread() {
    static thread_local const std::unique_ptr<Slot[]> slots(new Slot[kSlotCount]);
    return slots.get();
  }
  static std::size_t Index(std::uint64_t hash) { return (hash >> 40) & (kSlotCount - 1); }

 private:
  static constexpr std::size_t kSlotCount = std::size_t{1} << 14;
};

}  // namespace

class Tokenizer::Implementation {
 public:
  explicit Implementation(std::unique_ptr<const Bpe> bpe)
      : bpe_(std::move(bpe)), digest_(ContentDigest(bpe_->Contents())) {
    size_ = static_cast<std::uint32_t>(bpe_->Contents().tokens.size());
    for (const auto& [name, id] : bpe_->Contents().special_tokens) {
      special_names_[id] = &name;
      size_ = std::max(size_, id + 1);
    }
  }

  template <typename WordEnd>
  void Encode(std::string_view text, const WordEnd& word_end,
              std::vector<std::uint32_t>* ids) const {
    const char* p = text.data();
    const char* const end = p + text.size();
    const internal::WordTable& words = bpe_->WholeWords();
    WordCache::Slot* cache = nullptr;
    while (p != end) {
      const char* const stop = word_end(p, end);
      const auto bytes = static_cast<std::size_t>(stop - p);
      if (bytes <= WordKey::kMaxBytes) {
        const WordKey key = WordKey::Of(p, bytes, static_cast<std::size_t>(end - p));
        const std::uint64_t hash = words.Hash(key);
        const std::uint32_t id = words.FindShort(key, hash);
        if (id != kNoId) {
          ids->push_back(id);
        } else {
          if (cache == nullptr) cache = WordCache::OfThisThread();
          MergeCached(p, bytes, key, &cache[WordCache::Index(hash)], ids);
        }
      } else {
        const std::uint32_t id = words.FindLong(p, bytes);
        if (id != kNoId) {
          ids->push_back(id);
        } else {
          bpe_->MergeWord(p, bytes, ids);
        }
      }
      p = stop;
    }
  }

  // The bytes of an id; nothing when it is not in the vocabulary.
  std::optional<std::string_view> BytesOf(std::uint32_t id) const {
    const std::vector<std::string>& tokens = bpe_->Contents().tokens;
    if (id < tokens.size() && !tokens[id].empty()) return tokens[id];
    const auto special = special_names_.find(id);
    if (special == special_names_.end()) return std::nullopt;
    return *special->second;
  }

  const Vocabulary& Contents() const { return bpe_->Contents(); }
  std::uint32_t size() const { return size_; }
  const std::string& Digest() const { return digest_; }

 private:
  static std::uint32_t NextSerial() {
    static std::atomic<std::uint32_t> next{0};
    return ++next;
  }

  void MergeCached(const char* word, std::size_t bytes, const WordKey& key, WordCache::Slot* slot,
                   std::vector<std::uint32_t>* ids) const {
    if (slot->owner == serial_ && slot->key == key) {
      ids->insert(ids->end(), slot->ids, slot->ids + slot->count);
      return;
    }
    const std::size_t before = ids->size();
    bpe_->MergeShortWord(word, bytes, ids);
    const std::size_t count = ids->size() - before;
    if (count > WordCache::kMaxIds) return;
    slot->key = key;
    slot->owner = serial_;
    slot->count = static_cast<std::uint32_t>(count);
    std::copy_n(ids->data() + before, count, slot->ids);
  }

  std::unique_ptr<const Bpe> bpe_;
  std::string digest_;
  // Never reused, unlike an address, so nothing that a freed tokenizer left in a cache is taken.
  std::uint32_t serial_ = NextSerial();
  std::uint32_t size_ = 0;
  std::map<std::uint32_t, const std::string*> special_names_;
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
  WS_ASSIGN_OR_RETURN(std::unique_ptr<const Bpe> bpe, Bpe::Make(std::move(vocabulary), name));
  return std::shared_ptr<const Tokenizer>(
      new Tokenizer(std::make_unique<const Implementation>(std::move(bpe))));
}

void Tokenizer::Encode(std::string_view text, std::vector<std::uint32_t>* ids) const {
  switch (implementation_->Contents().pattern) {
    case Pattern::kGpt2:
      return implementation_->Encode(text, internal::Gpt2WordEnd, ids);
    case Pattern::kCl100k:
      return implementation_->Encode(text, internal::Cl100kWordEnd<true>, ids);
    case Pattern::kCl100kLineEnd:
      return implementation_->Encode(text, internal::Cl100kWordEnd<false>, ids);
  }
}

Status Tokenizer::Decode(std::span<const std::uint32_t> ids, std::string* bytes) const {
  const std::size_t size_before = bytes->size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::optional<std::string_view> token = implementation_->BytesOf(ids[i]);
    if (!token) {
      bytes->resize(size_before);
      return Status::InvalidArgument(
          "cannot decode: id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
          " is not in the vocabulary, whose ids are below " + std::to_string(VocabularySize()) +
          "; were the ids made with another tokenizer?");
    }
    bytes->append(*token);
  }
  return Status::Ok();
}

std::optional<std::uint32_t> Tokenizer::SpecialTokenId(std::string_view name) const {
  const auto& special_tokens = implementation_->Contents().special_tokens;
  const auto found = special_tokens.find(std::string(name));
  if (found == special_tokens.end()) return std::nullopt;
  return found->second;
}

std::uint32_t Tokenizer::VocabularySize() const { return implementation_->size(); }
const std::string& Tokenizer::Digest() const { return implementation_->Digest(); }

}  // namespace widestream
