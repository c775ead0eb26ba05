// ServerLoop: the Server. Private to engine/deliver.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/thread_annotations.h"
#include "engine/deliver/connection.h"
#include "engine/deliver/messages.h"
#include "engine/deliver/server.h"
#include "engine/deliver/step_window.h"

namespace widestream::delivery {

// A run of the stream from one state, shared by the clients that asked for it.
struct Session {
  std::uint64_t id = 0;
  std::string launcher_id;
  std::string state_json;
  bool fork = false;
  std::shared_ptr<StepProvider> provider;  // null while it opens
  std::string description_json;
  std::string initial_state_json;  // what StateJson said before the first step was pulled
  StepWindow window;

  struct Decided {
    Hash128 content;                                                   // but for its step
    std::optional<std::uint64_t> step;                                 // of a rank that fetches
    bool started = false;                                              // given to the provider
    std::optional<Result<std::uint64_t>> outcome;                      // nothing yet: under way
    std::vector<std::pair<std::uint64_t, std::uint32_t>> questioners;  // connection, request
  };
  std::vector<Decided> decisions;
  std::vector<std::uint64_t> decisions_by_place;

  Session(std::uint64_t number, const std::vector<bool>& fetches)
      : id(number), window(fetches), decisions_by_place(fetches.size(), 0) {}
};

// One thread, Loop, owns all connections and sessions and only it uses sockets; another, Work,
// makes the provider's slow calls one after the other and posts their outcomes back. `mutex_` is
// held while Loop handles events, so that status() sees a whole picture; never while it sleeps.
class ServerLoop final : public Server {
 public:
  ServerLoop(ServerOptions options, std::unique_ptr<SessionFactory> factory);
  ~ServerLoop() override;
  Status Start();

  ServerStatus status() const override;
  bool WaitIdle(std::chrono::milliseconds quiet,
                std::chrono::steady_clock::time_point deadline) override;
  void Stop() override;
  const std::string& socket_path() const override { return socket_path_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Answer = std::function<void(Connection& connection)>;

  // server_loop.cc: threads, sockets, life and death of connections.
  void Loop();
  void Work();
  void Wake() const;
  void RunOnWorker(std::function<void()> task) WS_EXCLUDES(work_mutex_);
  void Post(std::function<void()> event) WS_EXCLUDES(work_mutex_);
  // Runs what the worker posted.
  void RunPosted() WS_REQUIRES(mutex_);
  void AcceptAll() WS_REQUIRES(mutex_);
  // Off while the process has no descriptors left.
  void ListenFor(bool on) WS_REQUIRES(mutex_);
  void HandleEvent(std::uint64_t id, bool process_ended) WS_REQUIRES(mutex_);
  void Disconnect(std::uint64_t id) WS_REQUIRES(mutex_);
  void UpdateEvents(Connection& connection) WS_REQUIRES(mutex_);
  void FlushAll() WS_REQUIRES(mutex_);
  TimePoint NextTimer() const WS_REQUIRES(mutex_);
  void HandleTimers() WS_REQUIRES(mutex_);
  void Farewell() WS_REQUIRES(mutex_);
  Connection* Find(std::uint64_t id) WS_REQUIRES(mutex_);
  // The connection that feeds `place`, if any.
  const Connection* Attached(std::size_t place) const WS_REQUIRES(mutex_);
  std::size_t LiveClients() const WS_REQUIRES(mutex_);

  // server_session.cc: who may attach, and the sessions.
  void HandleHello(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  // Why the client may not have a place here; OK if it may. Finds its place.
  Status CheckHello(const Hello& hello, std::size_t* place) const WS_REQUIRES(mutex_);
  Status JoinSession(Connection& connection, const Hello& hello) WS_REQUIRES(mutex_);
  void OpenSession(const Hello& hello) WS_REQUIRES(mutex_);
  void SessionOpened(std::uint64_t id, Result<std::shared_ptr<StepProvider>> provider,
                     std::string description, std::string state) WS_REQUIRES(mutex_);
  void CloseSession() WS_REQUIRES(mutex_);
  Status AttachToSession(Connection& connection) WS_REQUIRES(mutex_);

  // server_messages.cc: what is asked and answered.
  void Refuse(Connection& connection, std::uint32_t request, const Status& why) WS_REQUIRES(mutex_);
  void HandleFrame(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  void HandleAttached(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  Status HandleNext(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  Status HandleRelease(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  Status HandleState(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  Status HandleDecide(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  void StartDecision(std::uint64_t index, Decision decision) WS_REQUIRES(mutex_);
  Status HandlePlan(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  void HandleExplain(Connection& connection, const Frame& frame) WS_REQUIRES(mutex_);
  void HandleGoodbye(Connection& connection) WS_REQUIRES(mutex_);
  // `task` runs on the worker, its answer here, if the connection is still there.
  void Ask(Connection& connection, std::function<Answer()> task) WS_REQUIRES(mutex_);
  static void SendText(Connection& connection, std::uint32_t request,
                       const Result<std::string>& text);
  // Sends every step that is asked for and ready; pulls what is missing.
  void Pump() WS_REQUIRES(mutex_);
  // False: nothing more can be done for this client now.
  bool ServeOne(Connection& connection) WS_REQUIRES(mutex_);
  void SendStep(Connection& connection, const Connection::Waiting& asked,
                const std::shared_ptr<const Step>& step) WS_REQUIRES(mutex_);
  // "rank 3 (process 77) has not released steps 5 to 7"; "" if nobody holds anything.
  std::string Holders() const WS_REQUIRES(mutex_);
  // status() as JSON; for the worker.
  std::string FiguresJson() const WS_EXCLUDES(mutex_);

  const ServerOptions options_;
  const std::unique_ptr<SessionFactory> factory_;  // used by the worker only
  std::string socket_path_;
  FileDescriptor listener_;
  std::pair<std::uint64_t, std::uint64_t> socket_file_;  // device and inode, to remove only ours
  FileDescriptor epoll_;
  FileDescriptor wake_;  // eventfd

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_ WS_GUARDED_BY(mutex_);
  std::unique_ptr<Session> session_ WS_GUARDED_BY(mutex_);
  std::uint64_t next_connection_ WS_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_session_ WS_GUARDED_BY(mutex_) = 1;
  std::vector<std::int32_t> last_pid_ WS_GUARDED_BY(mutex_);       // by place
  std::vector<std::shared_ptr<Slab>> kept_ WS_GUARDED_BY(mutex_);  // until the provider has stopped
  ServerStatus figures_ WS_GUARDED_BY(mutex_);  // the counts; the rest is filled in by status()
  std::optional<TimePoint> accept_again_ WS_GUARDED_BY(mutex_);  // accepting is off until then
  bool notify_ WS_GUARDED_BY(mutex_) = false;                    // on_change is due
  bool stopping_ WS_GUARDED_BY(mutex_) = false;

  Mutex work_mutex_;
  CondVar work_changed_;
  std::deque<std::function<void()>> work_ WS_GUARDED_BY(work_mutex_);
  std::vector<std::function<void()>> posted_ WS_GUARDED_BY(work_mutex_);
  bool work_ends_ WS_GUARDED_BY(work_mutex_) = false;

  Mutex stop_mutex_;  // one Stop at a time
  std::thread loop_ WS_GUARDED_BY(stop_mutex_);
  std::thread worker_ WS_GUARDED_BY(stop_mutex_);
};

}  // namespace widestream::delivery
