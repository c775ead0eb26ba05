// Connection: the server's end of one client's socket. It never waits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/deliver/frame.h"
#include "engine/deliver/slab_pool.h"
#include "engine/deliver/socket.h"

namespace widestream::delivery {

// A queue of frames to send and a buffer of bytes received, both bounded. Not thread-safe; used by
// the server's thread.
class Connection {
 public:
  enum class Phase : std::uint8_t {
    kGreeting,  // has not said hello
    kOpening,   // waits for the session to open
    kAttached,
    kLeaving,  // said goodbye, or is refused: may still hold memory
  };
  struct Waiting {  // a step that was asked for
    std::uint32_t request = 0;
    std::optional<std::uint64_t> after;
    std::chrono::steady_clock::time_point since;
  };

  Connection(std::uint64_t id, FileDescriptor socket, pid_t pid);

  // With `slab` its descriptor goes along; with `text` (a memfd) that one.
  void Send(MessageType type, std::uint32_t request, std::string_view body,
            std::shared_ptr<Slab> slab = nullptr, FileDescriptor text = {});
  void SendError(std::uint32_t request, const Status& error);
  // Sends what the socket takes. False: it is broken.
  bool Flush();
  // Reads what is there, within a bound (all of it if the peer is dead: `drain`); then NextFrame.
  // False: the peer closed.
  bool Receive(bool drain);
  Result<std::optional<Frame>> NextFrame() { return frames_.Next(); }
  void DiscardReceived() { frames_ = FrameBuffer(); }

  // The client must read before more of its questions are answered.
  [[nodiscard]] bool clogged() const { return queued_bytes_ > kMaxQueuedBytes; }
  [[nodiscard]] bool wants_to_send() const { return !queue_.empty(); }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] int process() const { return process_.get(); }
  [[nodiscard]] pid_t pid() const { return pid_; }

  Phase phase = Phase::kGreeting;
  // Refused: nothing more is read. It is closed when it has its error and maps no memory.
  bool close_when_sent = false;
  std::size_t place = 0;
  std::uint64_t session = 0;
  std::uint32_t hello_request = 0;
  std::optional<std::uint64_t> begin_step;
  std::chrono::steady_clock::time_point since;  // connected
  std::deque<Waiting> waiting;
  std::size_t questions = 0;  // that a worker works on
  std::uint32_t events = 0;   // what epoll was told
  // Memory that this client may have mapped, by step; it is not used again before it is released.
  std::map<std::uint64_t, std::shared_ptr<Slab>> leases;
  // Slabs whose descriptor this client has.
  std::map<std::uint64_t, std::weak_ptr<const void>> slabs;

 private:
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{16} << 20;
  struct Outgoing {
    std::string bytes;
    std::size_t sent_bytes = 0;
    std::shared_ptr<Slab> slab;
    FileDescriptor text;
  };

  const std::uint64_t id_;
  const FileDescriptor socket_;
  const pid_t pid_;
  const FileDescriptor process_;
  FrameBuffer frames_;
  std::deque<Outgoing> queue_;
  std::size_t queued_bytes_ = 0;
};

}  // namespace widestream::delivery
