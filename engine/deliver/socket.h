// Unix sockets with descriptors and credentials, as owned values.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace widestream::delivery {

// The longest path of a Unix socket.
inline constexpr std::size_t kMaxSocketPathBytes = 107;

// Owns a file descriptor. Move-only; not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

// OK if `folder` is a folder of this user that nobody else can enter.
Status CheckPrivateFolder(const std::string& folder);

// A listening, non-blocking socket at `path`, mode 0600. The file that a killed server left is
// replaced; one that is served is refused with Unavailable.
Result<FileDescriptor> Listen(const std::string& path);
// A connected, non-blocking socket. Unavailable: nobody listens, or the queue is full.
Result<FileDescriptor> Connect(const std::string& path);

struct PeerCredentials {
  pid_t pid = 0;  // 0: in another namespace
  uid_t uid = 0;
};
Result<PeerCredentials> Peer(int socket);

// Becomes readable when the process ends; invalid if the system cannot say.
FileDescriptor WatchProcess(pid_t pid);

enum class SendOutcome : std::uint8_t { kSent, kWouldBlock, kBroken };
// Sends as much as fits, with `descriptor` (-1: none) at the first byte. Never waits or raises.
SendOutcome SendSome(int socket, std::string_view bytes, int descriptor, std::size_t* sent_bytes);

struct Received {
  // kTruncated: descriptors were lost, for this process may open no more, or too many came.
  enum class Outcome : std::uint8_t { kBytes, kWouldBlock, kClosed, kBroken, kTruncated };
  Outcome outcome = Outcome::kWouldBlock;
  std::size_t bytes = 0;
};
// Never waits. Descriptors are appended to `descriptors`; if that is null they are discarded.
Received ReceiveSome(int socket, char* buffer, std::size_t buffer_bytes,
                     std::vector<FileDescriptor>* descriptors);

// A sealed memfd that holds `text`.
Result<FileDescriptor> TextToDescriptor(std::string_view text);
// InvalidArgument: not a sealed file of exactly this size.
Result<std::string> TextFromDescriptor(int fd, std::uint64_t size_bytes);

}  // namespace widestream::delivery
