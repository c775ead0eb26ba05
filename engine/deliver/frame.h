// Frames: how messages are cut out of the byte stream of a socket. docs/formats/delivery.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace widestream::delivery {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kMaxFrameBodyBytes = std::size_t{16} << 20;

enum class MessageType : std::uint8_t {
  kError = 1,  // the one message that every version reads
  kHello = 2,
  kWelcome = 3,
  kNext = 4,
  kBatch = 5,
  kEnd = 6,
  kRelease = 7,
  kState = 8,
  kDecide = 9,
  kCommit = 10,
  kStatus = 11,
  kPlan = 12,
  kExplain = 13,
  kText = 14,
  kNumber = 15,
  kDone = 16,
  kBye = 17,
};

struct Frame {
  std::uint16_t version = kProtocolVersion;
  MessageType type = MessageType::kError;
  std::uint8_t descriptors = 0;  // that travel with the frame: 0 or 1
  std::uint32_t request = 0;     // the answer carries the number of its question
  std::string body;
};

// `body` is at most kMaxFrameBodyBytes.
std::string EncodeFrame(MessageType type, std::uint32_t request, std::string_view body,
                        std::uint8_t descriptors = 0);

// Cuts frames out of bytes as they arrive. The bytes may be hostile: lengths are checked before
// anything waits for them. After an error the stream is useless. Not thread-safe.
class FrameBuffer {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame; nothing if more bytes are needed. DataCorruption: not our protocol;
  // ResourceExhausted: too long; InvalidArgument: another version (errors are read of every
  // version).
  Result<std::optional<Frame>> Next();
  // Bytes that wait for the rest of their frame.
  [[nodiscard]] std::size_t pending_bytes() const { return buffer_.size() - begin_; }

 private:
  std::string buffer_;
  std::size_t begin_ = 0;
};

}  // namespace widestream::delivery
