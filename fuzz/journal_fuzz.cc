// JournalReader on hostile bytes. So that a mutation gets past the checksums, the input is not the
// file itself but its records: type, length and payload of each are framed here; the byte before
// says if the frame is then damaged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "engine/plan/journal.h"
#include "engine/plan/journal_format.h"

namespace {

class MemoryFile final : public widestream::RandomAccessFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  widestream::Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size,
                                         char* out) const override {
    if (offset >= bytes_.size()) return std::size_t{0};
    const std::size_t count = std::min<std::size_t>(size, bytes_.size() - offset);
    std::memcpy(out, bytes_.data() + offset, count);
    return count;
  }
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }

 private:
  const std::string bytes_;
  const std::string path_ = "journal";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using widestream::journal_format::RecordType;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string file;
  if (!rest.empty() && (rest[0] & 1) == 0) {
    file = widestream::journal_format::Frame(
        RecordType::kHeader,
        widestream::journal_format::HeaderPayload({std::string(32, 'a'), {"web", "code"}}));
  }
  while (rest.size() >= 4) {
    const auto type = static_cast<RecordType>(rest[1] % 6);
    const auto length = std::min<std::size_t>(
        static_cast<unsigned char>(rest[2]) + 256U * static_cast<unsigned char>(rest[3]),
        rest.size() - 4);
    std::string record = widestream::journal_format::Frame(type, rest.substr(4, length));
    if ((rest[0] & 6) == 6) record[static_cast<unsigned char>(rest[0]) % record.size()] ^= 1;
    file += record;
    rest.remove_prefix(4 + length);
  }
  file += rest;

  const MemoryFile journal(file);
  const auto contents = widestream::journal_format::Scan(journal);
  if (!contents.ok()) return 0;
  if (contents->valid_bytes > file.size()) std::abort();
  if (contents->tear.has_value() != (contents->valid_bytes < file.size())) std::abort();
  for (const auto& step : contents->steps) {
    const auto record = widestream::journal_format::ReadRecord(journal, step.offset_bytes);
    if (!record.ok()) std::abort();
    static_cast<void>(widestream::journal_format::ParseStep(record->payload).ok());
  }
  for (const auto& manifest : contents->manifests) {
    const auto record = widestream::journal_format::ReadRecord(journal, manifest.offset_bytes);
    if (!record.ok() || !widestream::journal_format::ParseManifest(record->payload).ok())
      std::abort();
  }
  // Cut at the tear, the rest is a whole journal with the same contents.
  const auto again =
      widestream::journal_format::Scan(MemoryFile(file.substr(0, contents->valid_bytes)));
  if (!again.ok() || again->tear || again->steps.size() != contents->steps.size() ||
      again->decisions != contents->decisions) {
    std::abort();
  }
  return 0;
}
