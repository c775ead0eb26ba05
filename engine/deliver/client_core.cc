#include "engine/deliver/client_core.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/format_text.h"

namespace widestream::delivery {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kMaxMappings = 1 << 16;
constexpr std::uintptr_t kPageBytes = 4096;
// A thread that reads for all looks again this often, in case another has something to send.
constexpr std::chrono::milliseconds kLookAgain{200};

}  // namespace

ClientCore::ClientCore(FileDescriptor socket, pid_t host_pid)
    : socket_(std::move(socket)),
      own_pid_(getpid()),
      host_pid_(host_pid),
      releaser_([this](const Dropped& dropped) { Release(dropped); }) {}

ClientCore::~ClientCore() {
  if (in_own_process()) {
    releaser_.Finish();  // it looks at the mappings
  } else {
    releaser_.Abandon();
  }
  for (const auto& [id, mapping] : mappings_) Unmap(mapping);
}

void ClientCore::Unmap(const Mapping& mapping) { munmap(mapping.data, mapping.size_bytes); }

bool ClientCore::in_own_process() const { return getpid() == own_pid_; }

std::uint32_t ClientCore::Queue(MessageType type, std::string_view body) {
  const std::uint32_t request = next_request_++;
  if (next_request_ == 0) next_request_ = 1;
  outgoing_ += EncodeFrame(type, request, body);
  return request;
}

std::uint32_t ClientCore::Ask(MessageType type, std::string_view body) {
  MutexLock lock(mutex_);
  const std::uint32_t request = Queue(type, body);
  answers_[request];
  Send();
  return request;
}

std::uint32_t ClientCore::AskLater(MessageType type, std::string_view body) {
  MutexLock lock(mutex_);
  const std::uint32_t request = Queue(type, body);
  answers_[request];
  return request;
}

void ClientCore::FlushLater() {
  MutexLock lock(mutex_);
  if (!outgoing_.empty()) Send();
}

void ClientCore::Forget(std::uint32_t request) {
  MutexLock lock(mutex_);
  answers_.erase(request);
}

Result<ClientCore::Answer> ClientCore::Call(MessageType type, std::string_view body,
                                            Deadline deadline) {
  return AwaitOnce(Ask(type, body), deadline);
}

Result<ClientCore::Answer> ClientCore::AwaitOnce(std::uint32_t request, Deadline deadline) {
  Result<std::optional<Answer>> awaited = Await(request, deadline);
  if (!awaited.ok()) {
    Forget(request);
    return awaited.status();
  }
  std::optional<Answer>& answer = *awaited;
  if (answer) return std::move(*answer);
  Forget(request);
  MutexLock lock(mutex_);
  return Status::DeadlineExceeded(StrCat("the host process ", host_pid_,
                                         " has not answered in time",
                                         log_path_.empty() ? "" : "; its log is ", log_path_));
}

void ClientCore::Send() {
  if (socket_dead_) return;
  std::size_t sent = 0;
  ++counters_.sends;
  switch (SendSome(socket_.get(), outgoing_, -1, &sent)) {
    case SendOutcome::kSent:
      outgoing_.erase(0, sent);
      return;
    case SendOutcome::kWouldBlock:
      return;  // the next reader or sender goes on
    case SendOutcome::kBroken:
      // What the host said last may still be in the socket: a reader finds its end.
      socket_dead_ = true;
      return;
  }
}

Status ClientCore::HostGone(const char* how) const {
  return Status::Unavailable(StrCat("the host process ", host_pid_, " ", how,
                                    log_path_.empty() ? "" : "; its log is ", log_path_));
}

void ClientCore::Break(const Status& why) {
  if (broken_.ok()) broken_ = why;
  changed_.NotifyAll();
}

Result<std::optional<ClientCore::Answer>> ClientCore::Await(std::uint32_t request,
                                                            Deadline deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    const auto found = answers_.find(request);
    if (found == answers_.end()) return Status::Internal("an answer was awaited twice");
    std::optional<Answer>& slot = found->second;
    if (slot) {
      Answer answer = std::move(*slot);
      answers_.erase(found);
      if (answer.frame.type != MessageType::kError) return std::optional<Answer>(std::move(answer));
      Status error;
      WS_RETURN_IF_ERROR(DecodeError(answer.frame.body, &error));
      return error;
    }
    if (!broken_.ok()) return broken_;
    if (steady_clock::now() >= deadline) return std::optional<Answer>();
    if (reading_) {
      changed_.WaitUntil(mutex_, deadline);
      continue;
    }
    reading_ = true;
    lock.Unlock();
    ReadOnce(deadline);
    lock.Lock();
    reading_ = false;
    changed_.NotifyAll();
  }
}

void ClientCore::ReadOnce(Deadline deadline) {
  if (ReceiveNow()) return;
  pollfd waiting{socket_.get(), POLLIN, 0};
  {
    MutexLock lock(mutex_);
    if (!outgoing_.empty() && !socket_dead_) waiting.events |= POLLOUT;
    ++counters_.polls;
  }
  const auto until = std::min(deadline, steady_clock::now() + kLookAgain);
  const auto left =
      std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(0), until - steady_clock::now());
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(left.count() / 1000000000);
  timeout.tv_nsec = static_cast<long>(left.count() % 1000000000);  // NOLINT(google-runtime-int)
  if (ppoll(&waiting, 1, &timeout, nullptr) <= 0) return;
  if ((waiting.revents & POLLOUT) != 0) FlushLater();
  if ((waiting.revents & (POLLIN | POLLHUP | POLLERR)) != 0) ReceiveNow();
}

bool ClientCore::ReceiveNow() {
  // Only the thread that has set reading_ is here, so the bytes stay in order.
  char buffer[kReceiveBytes];
  std::vector<FileDescriptor> descriptors;
  const Received received = ReceiveSome(socket_.get(), buffer, sizeof(buffer), &descriptors);
  MutexLock lock(mutex_);
  ++counters_.receives;
  if (received.outcome == Received::Outcome::kWouldBlock) return false;
  for (FileDescriptor& descriptor : descriptors) descriptors_.push_back(std::move(descriptor));
  if (received.outcome == Received::Outcome::kBytes) {
    frames_.Append({buffer, received.bytes});
    Dispatch();
  } else if (received.outcome == Received::Outcome::kTruncated) {
    socket_dead_ = true;
    Break(Status::ResourceExhausted(
        "this process cannot take a descriptor of the host's memory: it has too many files open; "
        "raise its limit (ulimit -n), or close some"));
  } else {
    socket_dead_ = true;
    Break(HostGone("died, or closed the connection"));
  }
  return true;
}

void ClientCore::Dispatch() {
  for (;;) {
    Result<std::optional<Frame>> next = frames_.Next();
    if (!next.ok()) {
      socket_dead_ = true;
      Break(next.status());
      return;
    }
    std::optional<Frame>& frame = *next;
    if (!frame) return;
    Answer answer{std::move(*frame), {}};
    if (answer.frame.descriptors > 0) {
      if (descriptors_.empty()) {
        socket_dead_ = true;
        Break(Status::DataCorruption("the host sent a message without its descriptor"));
        return;
      }
      answer.descriptor = std::move(descriptors_.front());
      descriptors_.pop_front();
    }
    if (answer.frame.request == 0) {
      // Said to the connection as a whole: the host stops, or does not understand us.
      Status error;
      const Status decoded = answer.frame.type == MessageType::kError
                                 ? DecodeError(answer.frame.body, &error)
                                 : Status::DataCorruption("an answer without a question");
      Break(decoded.ok() ? error : decoded);
      continue;
    }
    const auto found = answers_.find(answer.frame.request);
    if (found != answers_.end()) {
      found->second = std::move(answer);
    }
    // Else it was forgotten.
  }
}

Status ClientCore::CheckAlive() {
  MutexLock lock(mutex_);
  while (broken_.ok() && !reading_) {
    reading_ = true;
    lock.Unlock();
    const bool more = ReceiveNow();
    lock.Lock();
    reading_ = false;
    changed_.NotifyAll();
    if (!more) break;
  }
  return broken_;
}

void ClientCore::Close(const Status& why) {
  MutexLock lock(mutex_);
  if (!broken_.ok()) return;
  Queue(MessageType::kBye, {});
  Send();
  Break(why);
}

void ClientCore::ShutDown() {
  MutexLock lock(mutex_);
  shutdown(socket_.get(), SHUT_RDWR);
  socket_dead_ = true;
  Break(Status::Unavailable("the connection was broken by a test"));
}

void ClientCore::SetHost(pid_t pid, std::string log_path) {
  MutexLock lock(mutex_);
  host_pid_ = pid;
  log_path_ = std::move(log_path);
}

ClientCounters ClientCore::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

Result<std::shared_ptr<const ClientBatch>> ClientCore::Map(BatchMessage message,
                                                           FileDescriptor descriptor) {
  MutexLock lock(mutex_);
  for (const std::uint64_t id : message.gone) {
    const auto found = mappings_.find(id);
    if (found == mappings_.end()) continue;
    found->second.gone = true;
    if (found->second.users > 0) continue;
    Unmap(found->second);
    mappings_.erase(found);
  }
  auto found = mappings_.find(message.slab_id);
  if (found == mappings_.end()) {
    const auto bad = [&](const std::string& problem) {
      return Status::DataCorruption(
          StrCat("step ", message.step, " of the host: slab ", message.slab_id, " ", problem));
    };
    if (!descriptor.valid()) return bad("comes without its descriptor");
    if (mappings_.size() >= kMaxMappings) return bad("is one too many to be mapped");
    // A file that could shrink would crash us with SIGBUS.
    struct stat info{};
    const int seals = fcntl(descriptor.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return bad("is not sealed against shrinking");
    if (fstat(descriptor.get(), &info) != 0 ||
        static_cast<std::uint64_t>(info.st_size) != message.slab_bytes) {
      return bad(StrCat("does not have its size of ", message.slab_bytes, " bytes"));
    }
    // Private: edits in place are the trainer's own. No swap is set aside for edits that are rare.
    void* data = mmap(nullptr, message.slab_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_NORESERVE, descriptor.get(), 0);
    if (data == MAP_FAILED) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("a batch of ", message.slab_bytes,
                           " bytes cannot be mapped; see ulimit -v and vm.max_map_count"),
                    errno);
    }
    ++counters_.mappings;
    Mapping mapping;
    mapping.data = static_cast<std::byte*>(data);
    mapping.size_bytes = message.slab_bytes;
    found = mappings_.emplace(message.slab_id, mapping).first;
  } else if (found->second.size_bytes != message.slab_bytes) {
    return Status::DataCorruption(
        StrCat("slab ", message.slab_id, " of the host changed its size"));
  }
  Mapping& mapping = found->second;
  ++mapping.users;
  ++counters_.batches;

  auto batch = std::make_unique<ClientBatch>();
  batch->view = std::move(message.view);
  batch->memory = mapping.data;
  batch->real_tokens = message.real_tokens;
  batch->supervised_tokens = message.supervised_tokens;
  batch->digest = std::move(message.digest);
  batch->costs = std::move(message.costs);
  batch->tokens_by_source = std::move(message.tokens_by_source);
  batch->weights = std::move(message.weights);

  std::size_t begin = mapping.size_bytes;
  std::size_t end = 0;
  for (const MicrobatchView& microbatch : batch->view.microbatches) {
    for (const TensorView& tensor : microbatch.tensors) {
      begin = std::min(begin, tensor.offset_bytes);
      end = std::max(end, tensor.offset_bytes + tensor.size_bytes());
    }
  }
  begin = std::min(begin, end) / kPageBytes * kPageBytes;
  const Dropped used{message.step, message.slab_id, mapping.data + begin, end - begin};
  const auto release = [core = shared_from_this(), used](const ClientBatch* dropped) {
    std::unique_ptr<const ClientBatch> owned(dropped);
    // In a forked child: the parent holds the step.
    if (core->in_own_process()) core->releaser_.Push(used);
  };
  return std::shared_ptr<const ClientBatch>(batch.release(), release);
}

void ClientCore::Release(const Dropped& dropped) {
  // Pages that were written to are copies of this process; the next step on this slab must not
  // show them. Before the host hears of it, for then it writes.
  private_pages_.Drop(dropped.used, dropped.used_bytes);
  MutexLock lock(mutex_);
  const auto found = mappings_.find(dropped.slab_id);
  if (found != mappings_.end()) {
    --found->second.users;
    if (found->second.users == 0 && found->second.gone) {
      Unmap(found->second);
      mappings_.erase(found);
    }
  }
  Queue(MessageType::kRelease, EncodeNumber(dropped.step));
  Send();
}

}  // namespace widestream::delivery
