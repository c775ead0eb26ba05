#include "engine/deliver/frame.h"

#include <cstring>

#include "engine/base/format_text.h"
#include "engine/base/wire.h"

namespace widestream::delivery {
namespace {

constexpr std::uint32_t kMagic = WireMagic("WSDL");

}  // namespace

std::string EncodeFrame(MessageType type, std::uint32_t request, std::string_view body,
                        std::uint8_t descriptors) {
  WireWriter writer;
  writer.Header(kMagic, kProtocolVersion);
  writer.U8(static_cast<std::uint8_t>(type));
  writer.U8(descriptors);
  writer.U32(request);
  writer.U32(static_cast<std::uint32_t>(body.size()));
  std::string frame = writer.Take();
  frame.append(body);
  return frame;
}

Result<std::optional<Frame>> FrameBuffer::Next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < kFrameHeaderBytes) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    return std::optional<Frame>();
  }
  WireReader reader(rest.substr(0, kFrameHeaderBytes), "delivery frame");
  Frame frame;
  WS_ASSIGN_OR_RETURN(frame.version, reader.Header(kMagic, 0, UINT16_MAX));
  WS_ASSIGN_OR_RETURN(const std::uint8_t type, reader.U8());
  WS_ASSIGN_OR_RETURN(frame.descriptors, reader.U8());
  WS_ASSIGN_OR_RETURN(frame.request, reader.U32());
  WS_ASSIGN_OR_RETURN(const std::uint32_t body_bytes, reader.U32());
  frame.type = static_cast<MessageType>(type);
  if (frame.version != kProtocolVersion && frame.type != MessageType::kError) {
    return Status::InvalidArgument(StrCat(
        "the other side speaks version ", frame.version,
        " of the delivery protocol, this "
        "one version ",
        kProtocolVersion, ": use the same release of widestream in the host and in all trainers"));
  }
  if (type < static_cast<std::uint8_t>(MessageType::kError) ||
      type > static_cast<std::uint8_t>(MessageType::kBye)) {
    return reader.Corrupt(StrCat("message type ", type, " is unknown"));
  }
  if (frame.descriptors > 1) {
    return reader.Corrupt(StrCat(frame.descriptors, " descriptors with one frame"));
  }
  if (body_bytes > kMaxFrameBodyBytes) {
    return Status::ResourceExhausted(StrCat("delivery frame: a body of ", body_bytes,
                                            " bytes exceeds the limit of ", kMaxFrameBodyBytes));
  }
  if (rest.size() - kFrameHeaderBytes < body_bytes) return std::optional<Frame>();
  frame.body = rest.substr(kFrameHeaderBytes, body_bytes);
  begin_ += kFrameHeaderBytes + body_bytes;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

}  // namespace widestream::delivery
