// Reading a tokenizer's file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/transform/hash128.h"
#include "engine/transform/tokenizer_implementation.h"
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
  // Only where there is one, so that the digests of files without them stay what they were.
  if (vocabulary.normalize_nfc) hash.AddString("nfc");
  for (const internal::AddedToken& added : vocabulary.added_tokens) {
    if (added.special) continue;
    hash.AddString("added token");
    hash.AddString(added.name);
    hash.AddInteger(added.id);
    hash.AddInteger((added.strip_left ? 1 : 0) + (added.strip_right ? 2 : 0) +
                    (added.normalized ? 4 : 0));
  }
  return hash.Hex();
}

}  // namespace

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
  WS_ASSIGN_OR_RETURN(std::unique_ptr<const Bpe> bpe,
                      Bpe::Make(vocabulary, name, internal::BestIsa()));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<const Implementation>(
      std::move(bpe), std::move(vocabulary), std::move(digest))));
}

}  // namespace widestream
