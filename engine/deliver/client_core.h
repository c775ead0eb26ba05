// ClientCore: a client's connection and mappings. Private to engine/deliver.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"
#include "engine/deliver/client.h"
#include "engine/deliver/frame.h"
#include "engine/deliver/messages.h"
#include "engine/deliver/private_pages.h"
#include "engine/deliver/releaser.h"
#include "engine/deliver/socket.h"

namespace widestream::delivery {

// Shared by the Client and its batches, so it lives until the last batch is dropped. Thread-safe.
// Of the threads that wait for an answer one reads the socket for all; a thread of its own gives
// dropped batches back. In a forked child nothing may touch it: locks may be held by threads that
// are not there.
class ClientCore : public std::enable_shared_from_this<ClientCore> {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Answer {
    Frame frame;
    FileDescriptor descriptor;
  };

  ClientCore(FileDescriptor socket, pid_t host_pid);
  ~ClientCore();

  // False in a child of fork().
  [[nodiscard]] bool in_own_process() const;

  // Sends a question and returns its number.
  std::uint32_t Ask(MessageType type, std::string_view body);
  // The answer, or the error that was answered; nothing if there is none at the deadline: then it
  // may be awaited again. Unavailable: the host is gone.
  Result<std::optional<Answer>> Await(std::uint32_t request, Deadline deadline);
  // Ask and Await; no answer is DeadlineExceeded.
  Result<Answer> Call(MessageType type, std::string_view body, Deadline deadline);
  Result<Answer> AwaitOnce(std::uint32_t request, Deadline deadline);
  // The answer will not be awaited.
  void Forget(std::uint32_t request);
  // With Ask's: sends `type` along with whatever is sent next.
  std::uint32_t AskLater(MessageType type, std::string_view body);
  void FlushLater();

  // A batch in its mapping; its deleter releases it.
  Result<std::shared_ptr<const ClientBatch>> Map(BatchMessage message, FileDescriptor descriptor);

  // Reads what is there, without waiting; the error if the host is gone.
  Status CheckAlive();
  // No question is answered any more; what waits fails with `why`.
  void Close(const Status& why);
  void ShutDown();
  void SetHost(pid_t pid, std::string log_path);
  ClientCounters counters() const;

 private:
  struct Mapping {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    std::size_t users = 0;
    bool gone = false;  // to be unmapped when the last user is
  };

  void Send() WS_REQUIRES(mutex_);
  std::uint32_t Queue(MessageType type, std::string_view body) WS_REQUIRES(mutex_);
  // Waits for the socket and reads it once; returns false if there was nothing.
  void ReadOnce(Deadline deadline) WS_EXCLUDES(mutex_);
  bool ReceiveNow() WS_EXCLUDES(mutex_);
  void Dispatch() WS_REQUIRES(mutex_);
  void Break(const Status& why) WS_REQUIRES(mutex_);
  Status HostGone(const char* how) const WS_REQUIRES(mutex_);
  void Release(const Dropped& dropped) WS_EXCLUDES(mutex_);
  static void Unmap(const Mapping& mapping);

  const FileDescriptor socket_;
  const pid_t own_pid_;
  const PrivatePages private_pages_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool reading_ WS_GUARDED_BY(mutex_) = false;
  FrameBuffer frames_ WS_GUARDED_BY(mutex_);
  std::vector<FileDescriptor> received_ WS_GUARDED_BY(mutex_);
  std::deque<FileDescriptor> descriptors_ WS_GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::optional<Answer>> answers_ WS_GUARDED_BY(mutex_);
  std::string outgoing_ WS_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Mapping> mappings_ WS_GUARDED_BY(mutex_);
  std::uint32_t next_request_ WS_GUARDED_BY(mutex_) = 1;
  Status broken_ WS_GUARDED_BY(mutex_);
  bool socket_dead_ WS_GUARDED_BY(mutex_) = false;
  pid_t host_pid_ WS_GUARDED_BY(mutex_) = 0;
  std::string log_path_ WS_GUARDED_BY(mutex_);
  ClientCounters counters_ WS_GUARDED_BY(mutex_);
  Releaser releaser_;
};

}  // namespace widestream::delivery
