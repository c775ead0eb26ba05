#include "engine/deliver/server_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/format_text.h"

namespace widestream::delivery {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kGreetingTime{10};
constexpr std::chrono::milliseconds kAcceptPause{200};
// epoll's data: connection * 2, plus 1 for the end of its process; connections begin at 1.
constexpr std::uint64_t kListenerEvent = 0;
constexpr std::uint64_t kWakeEvent = 1;
constexpr int kEventsAtOnce = 64;

}  // namespace

ServerLoop::ServerLoop(ServerOptions options, std::unique_ptr<SessionFactory> factory)
    : options_(std::move(options)), factory_(std::move(factory)) {}

ServerLoop::~ServerLoop() { Stop(); }

Status ServerLoop::Start() {
  for (std::size_t i = 0; i < options_.places.size(); ++i) {
    const ServedPlace& place = options_.places[i];
    if (place.rank >= options_.world) {
      return Status::InvalidArgument(
          StrCat("a server of world ", options_.world, " cannot serve rank ", place.rank));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (options_.places[j].rank == place.rank) {
        return Status::InvalidArgument(StrCat("rank ", place.rank, " is served twice"));
      }
    }
  }
  WS_RETURN_IF_ERROR(CheckPrivateFolder(options_.folder));
  socket_path_ = options_.folder + "/" + options_.socket_name;
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return Status::IoError("epoll for the host's socket", errno);
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return Status::IoError("eventfd for the host's socket", errno);
  WS_ASSIGN_OR_RETURN(listener_, Listen(socket_path_));
  struct stat bound{};
  if (lstat(socket_path_.c_str(), &bound) == 0) socket_file_ = {bound.st_dev, bound.st_ino};
  for (const auto& [fd, data] :
       {std::pair(listener_.get(), kListenerEvent), std::pair(wake_.get(), kWakeEvent)}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = data;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return Status::IoError("epoll for the host's socket", errno);
    }
  }
  {
    MutexLock lock(mutex_);
    last_pid_.assign(options_.places.size(), 0);
    figures_.idle_since = steady_clock::now();
  }
  MutexLock lock(stop_mutex_);
  worker_ = std::thread([this] { Work(); });
  loop_ = std::thread([this] { Loop(); });
  return Status::Ok();
}

void ServerLoop::Stop() {
  MutexLock stop_lock(stop_mutex_);
  if (!loop_.joinable()) return;
  std::shared_ptr<StepProvider> provider;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (session_ != nullptr) provider = session_->provider;
    changed_.NotifyAll();
  }
  Wake();
  loop_.join();
  // What the worker waits for ends.
  if (provider != nullptr) provider->Stop();
  provider.reset();
  {
    MutexLock lock(work_mutex_);
    work_ends_ = true;
    work_changed_.NotifyAll();
  }
  worker_.join();
  {
    MutexLock lock(mutex_);
    kept_.clear();
  }
  std::vector<std::function<void()>> unwanted;
  {
    MutexLock lock(work_mutex_);
    unwanted.swap(posted_);  // they may own a provider
  }
}

void ServerLoop::Wake() const {
  const std::uint64_t one = 1;
  // Fails only if the counter is full: then the loop is awake anyway.
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof(one));
}

void ServerLoop::RunOnWorker(std::function<void()> task) {
  MutexLock lock(work_mutex_);
  work_.push_back(std::move(task));
  work_changed_.NotifyAll();
}

void ServerLoop::Post(std::function<void()> event) {
  {
    MutexLock lock(work_mutex_);
    posted_.push_back(std::move(event));
  }
  Wake();
}

void ServerLoop::Work() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(work_mutex_);
      while (work_.empty() && !work_ends_) work_changed_.Wait(work_mutex_);
      if (work_.empty()) return;
      task = std::move(work_.front());
      work_.pop_front();
    }
    task();
  }
}

void ServerLoop::RunPosted() {
  std::vector<std::function<void()>> events;
  {
    MutexLock lock(work_mutex_);
    events.swap(posted_);
  }
  for (const std::function<void()>& event : events) event();
}

void ServerLoop::Loop() {
  epoll_event events[kEventsAtOnce];
  TimePoint timer = TimePoint::max();
  for (;;) {
    int wait_milliseconds = -1;
    if (timer != TimePoint::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(timer - steady_clock::now());
      wait_milliseconds = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000));
    }
    const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, wait_milliseconds);
    bool notify = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) {
        Farewell();
        return;
      }
      for (int i = 0; i < count; ++i) {
        const std::uint64_t data = events[i].data.u64;
        if (data == kListenerEvent) {
          AcceptAll();
        } else if (data == kWakeEvent) {
          std::uint64_t drained = 0;
          [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &drained, sizeof(drained));
        } else {
          HandleEvent(data / 2, data % 2 == 1);
        }
      }
      RunPosted();
      HandleTimers();
      Pump();
      FlushAll();
      timer = NextTimer();
      notify = std::exchange(notify_, false);
      if (notify) changed_.NotifyAll();
    }
    if (notify && options_.on_change) options_.on_change();
  }
}

void ServerLoop::AcceptAll() {
  const std::size_t most = 4 * options_.places.size() + 64;
  for (;;) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The client waits in the queue of the socket; without this the loop would spin.
        ListenFor(false);
        accept_again_ = steady_clock::now() + kAcceptPause;
      }
      return;
    }
    if (connections_.size() >= most) continue;
    const Result<PeerCredentials> peer = Peer(socket.get());
    if (!peer.ok()) continue;
    const std::uint64_t id = next_connection_++;
    auto connection = std::make_unique<Connection>(id, std::move(socket), peer->pid);
    connection->since = steady_clock::now();
    if (peer->uid != geteuid()) {
      Refuse(*connection, 0,
             Status::InvalidArgument(StrCat("the host runs as user ", geteuid(), ", not as user ",
                                            peer->uid, "; start both as the same user")));
    }
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = 2 * id;
    connection->events = event.events;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket(), &event) != 0) continue;
    if (connection->process() >= 0) {
      event.events = EPOLLIN;
      event.data.u64 = 2 * id + 1;
      // Without it the death of a process is still seen when its socket closes.
      static_cast<void>(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->process(), &event));
    }
    connections_.emplace(id, std::move(connection));
  }
}

void ServerLoop::ListenFor(bool on) {
  epoll_event event{};
  event.events = on ? static_cast<std::uint32_t>(EPOLLIN) : 0U;
  event.data.u64 = kListenerEvent;
  static_cast<void>(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event));
}

Connection* ServerLoop::Find(std::uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

const Connection* ServerLoop::Attached(std::size_t place) const {
  for (const auto& [id, connection] : connections_) {
    if ((connection->phase == Connection::Phase::kAttached ||
         connection->phase == Connection::Phase::kOpening) &&
        connection->place == place) {
      return connection.get();
    }
  }
  return nullptr;
}

std::size_t ServerLoop::LiveClients() const {
  std::size_t count = 0;
  for (const auto& [id, connection] : connections_) {
    count += connection->phase == Connection::Phase::kAttached ||
                     connection->phase == Connection::Phase::kOpening
                 ? 1
                 : 0;
  }
  return count;
}

void ServerLoop::HandleEvent(std::uint64_t id, bool process_ended) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  const bool open = connection->Receive(process_ended) && !process_ended;
  if (connection->close_when_sent) connection->DiscardReceived();
  while (!connection->clogged() || !open) {
    const Result<std::optional<Frame>> next = connection->NextFrame();
    if (!next.ok()) {
      Refuse(*connection, 0, next.status());
      break;
    }
    const std::optional<Frame>& frame = *next;
    if (!frame) break;
    HandleFrame(*connection, *frame);
  }
  if (!open) Disconnect(id);
}

void ServerLoop::Disconnect(std::uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const std::unique_ptr<Connection> connection = std::move(found->second);
  connections_.erase(found);
  if (connection->phase == Connection::Phase::kAttached) {
    figures_.last_left_gracefully = false;
    if (LiveClients() == 0) figures_.idle_since = steady_clock::now();
  }
  notify_ = true;
  // Its leases go with it; what it has not acknowledged stays in the session's window.
}

void ServerLoop::UpdateEvents(Connection& connection) {
  std::uint32_t events = EPOLLRDHUP;
  if (!connection.clogged()) events |= EPOLLIN;
  if (connection.wants_to_send()) events |= EPOLLOUT;
  if (events == connection.events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = 2 * connection.id();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket(), &event) == 0) {
    connection.events = events;
  }
}

void ServerLoop::FlushAll() {
  std::vector<std::uint64_t> broken;
  std::vector<std::uint64_t> unclogged;
  for (const auto& [id, connection] : connections_) {
    const bool clogged = connection->clogged();
    if (!connection->Flush() || (connection->close_when_sent && !connection->wants_to_send() &&
                                 connection->leases.empty())) {
      broken.push_back(id);
      continue;
    }
    if (clogged && !connection->clogged()) unclogged.push_back(id);
    UpdateEvents(*connection);
  }
  for (const std::uint64_t id : broken) Disconnect(id);
  // Their questions may be in our buffer already, of which epoll knows nothing.
  for (const std::uint64_t id : unclogged) HandleEvent(id, false);
  if (!unclogged.empty()) Wake();
}

ServerLoop::TimePoint ServerLoop::NextTimer() const {
  TimePoint next = accept_again_.value_or(TimePoint::max());
  for (const auto& [id, connection] : connections_) {
    if (connection->phase == Connection::Phase::kGreeting) {
      next = std::min(next, connection->since + kGreetingTime);
    }
    if (!connection->waiting.empty()) {
      next = std::min(next, connection->waiting.front().since + options_.hold_deadline);
    }
  }
  return next;
}

void ServerLoop::HandleTimers() {
  const TimePoint now = steady_clock::now();
  if (accept_again_ && now >= *accept_again_) {
    accept_again_.reset();
    ListenFor(true);
  }
  std::vector<std::uint64_t> silent;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase == Connection::Phase::kGreeting &&
        now >= connection->since + kGreetingTime) {
      silent.push_back(id);
    }
    if (connection->waiting.empty()) continue;
    Connection::Waiting& waiting = connection->waiting.front();
    if (now < waiting.since + options_.hold_deadline) continue;
    if (session_ != nullptr && session_->provider != nullptr &&
        session_->provider->WaitsForMemory()) {
      const std::string holders = Holders();
      connection->SendError(
          waiting.request, Status::ResourceExhausted(StrCat(
                               "the next step has waited ", options_.hold_deadline.count() / 1000.0,
                               " s for memory: ", holders.empty() ? "nobody holds a step" : holders,
                               "; drop references to old batches, or raise limits.host_memory")));
      connection->waiting.pop_front();
    } else {
      waiting.since = now;  // the data is slow, and says so itself
    }
  }
  for (const std::uint64_t id : silent) Disconnect(id);
}

void ServerLoop::Farewell() {
  const Status stopped = Status::Unavailable("the host was stopped");
  for (const auto& [id, connection] : connections_) {
    connection->SendError(0, stopped);
    static_cast<void>(connection->Flush());  // best effort; they see the end of the socket anyway
    // Their batches stay valid: what they map must not be used again by a provider that still runs.
    for (auto& [step, slab] : connection->leases) kept_.push_back(std::move(slab));
  }
  connections_.clear();
  CloseSession();
  struct stat bound{};
  if (lstat(socket_path_.c_str(), &bound) == 0 &&
      std::pair<std::uint64_t, std::uint64_t>(bound.st_dev, bound.st_ino) == socket_file_) {
    unlink(socket_path_.c_str());
  }
  listener_.Reset();
}

ServerStatus ServerLoop::status() const {
  MutexLock lock(mutex_);
  ServerStatus status = figures_;
  for (std::size_t i = 0; i < options_.places.size(); ++i) {
    PlaceStatus place;
    place.rank = options_.places[i].rank;
    place.attached = Attached(i) != nullptr;
    place.pid = last_pid_[i];
    if (session_ != nullptr) place.unacknowledged = session_->window.Unacknowledged(i);
    status.places.push_back(std::move(place));
  }
  status.clients = static_cast<std::uint32_t>(LiveClients());
  if (session_ != nullptr) status.steps_in_memory = session_->window.steps_in_memory();
  return status;
}

bool ServerLoop::WaitIdle(std::chrono::milliseconds quiet, TimePoint deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return false;
    const TimePoint now = steady_clock::now();
    TimePoint until = deadline;
    if (LiveClients() == 0) {
      if (now >= figures_.idle_since + quiet) return true;
      until = std::min(until, figures_.idle_since + quiet);
    }
    if (now >= deadline) return false;
    changed_.WaitUntil(mutex_, until);
  }
}

}  // namespace widestream::delivery

namespace widestream {

Result<std::unique_ptr<Server>> Server::Make(ServerOptions options,
                                             std::unique_ptr<SessionFactory> factory) {
  auto server = std::make_unique<delivery::ServerLoop>(std::move(options), std::move(factory));
  WS_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace widestream
