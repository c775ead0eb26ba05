#include "engine/formats/megatron_writer.h"

#include <string>
#include <string_view>

namespace widestream {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kBufferBytes = 1U << 20;

// Little-endian integers on their way to a file.
class IntegerWriter {
 public:
  explicit IntegerWriter(AppendFile* out) : out_(out) {}

  template <typename T>
  Status Add(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      buffer_ += static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFF);
    }
    return buffer_.size() < kBufferBytes ? Status() : Flush();
  }
  Status Flush() {
    WS_RETURN_IF_ERROR(out_->Append(buffer_));
    buffer_.clear();
    return {};
  }

 private:
  AppendFile* const out_;
  std::string buffer_;
};

}  // namespace

Status WriteMegatronIndex(MegatronIdType type,
                          const std::function<Status(const LengthVisitor&)>& lengths,
                          AppendFile* out) {
  std::uint64_t documents = 0;
  std::uint64_t sequences = 0;
  const auto count = [&](std::span<const std::int32_t> some) -> Status {
    documents += some.size();
    for (const std::int32_t length : some) {
      if (length < 0) {
        return Status::InvalidArgument("a document has " + std::to_string(length) + " ids");
      }
      sequences += length > 0 ? 1 : 0;
    }
    return {};
  };
  WS_RETURN_IF_ERROR(lengths(count));
  WS_RETURN_IF_ERROR(out->Append(kMagic));
  IntegerWriter writer(out);
  WS_RETURN_IF_ERROR(writer.Add(kVersion));
  WS_RETURN_IF_ERROR(writer.Add(static_cast<std::uint8_t>(type)));
  WS_RETURN_IF_ERROR(writer.Add(sequences));
  // The file counts the borders of documents, one more than there are documents.
  WS_RETURN_IF_ERROR(writer.Add(documents + 1));
  const auto add_lengths = [&](std::span<const std::int32_t> some) -> Status {
    for (const std::int32_t length : some) {
      if (length > 0) WS_RETURN_IF_ERROR(writer.Add(static_cast<std::uint32_t>(length)));
    }
    return {};
  };
  WS_RETURN_IF_ERROR(lengths(add_lengths));
  std::uint64_t pointer = 0;
  const auto add_pointers = [&](std::span<const std::int32_t> some) -> Status {
    for (const std::int32_t length : some) {
      if (length > 0) WS_RETURN_IF_ERROR(writer.Add(pointer));
      pointer += static_cast<std::uint64_t>(length) * MegatronIdBytes(type);
    }
    return {};
  };
  WS_RETURN_IF_ERROR(lengths(add_pointers));
  std::uint64_t border = 0;
  WS_RETURN_IF_ERROR(writer.Add(border));
  const auto add_borders = [&](std::span<const std::int32_t> some) -> Status {
    for (const std::int32_t length : some) {
      border += length > 0 ? 1 : 0;
      WS_RETURN_IF_ERROR(writer.Add(border));
    }
    return {};
  };
  WS_RETURN_IF_ERROR(lengths(add_borders));
  return writer.Flush();
}

}  // namespace widestream
