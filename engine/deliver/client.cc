#include "engine/deliver/client.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/deliver/client_core.h"
#include "engine/deliver/messages.h"
#include "engine/deliver/socket.h"

namespace widestream {
namespace {

using delivery::ClientCore;
using delivery::MessageType;
using std::chrono::steady_clock;

// How long a host may take to say what it is doing.
constexpr std::chrono::milliseconds kExplainTime{1000};

class SocketClient final : public Client {
 public:
  SocketClient(ClientOptions options, std::shared_ptr<ClientCore> core)
      : options_(std::move(options)), core_(std::move(core)) {
    const std::uint64_t begin = options_.begin_step.value_or(0);
    if (begin > 0) last_ = begin - 1;
    next_state_ = options_.begin_step;
  }
  ~SocketClient() override { Close(); }

  Status SayHello(Deadline deadline) {
    delivery::Hello hello;
    hello.rank = options_.rank;
    hello.world = options_.world;
    hello.job_hash = options_.job_hash;
    hello.job_keys = options_.job_keys;
    hello.launcher_id = options_.launcher_id;
    hello.state_json = options_.state_json;
    hello.fork = options_.fork;
    hello.begin_step = options_.begin_step;
    if (hello.state_json.size() > delivery::kMaxStateBytes) {
      return Status::InvalidArgument(StrCat("a state of ", hello.state_json.size(),
                                            " bytes; at most ", delivery::kMaxStateBytes,
                                            " can be sent to a host"));
    }
    const std::string body = Encode(hello);
    if (body.size() > delivery::kMaxFrameBodyBytes) {
      return Status::InvalidArgument("the job and the state are too large to be sent to a host");
    }
    WS_ASSIGN_OR_RETURN(const ClientCore::Answer answer,
                        core_->Call(MessageType::kHello, body, deadline));
    WS_RETURN_IF_ERROR(Expect(answer, MessageType::kWelcome));
    WS_ASSIGN_OR_RETURN(delivery::WelcomeMessage message,
                        delivery::DecodeWelcome(answer.frame.body));
    welcome_.host_pid = message.host_pid;
    welcome_.log_path = std::move(message.log_path);
    welcome_.description_json = std::move(message.description_json);
    welcome_.dp = message.dp;
    welcome_.cp = message.cp;
    welcome_.tp = message.tp;
    welcome_.pp = message.pp;
    welcome_.fetches = message.fetches;
    welcome_.leader = message.leader;
    welcome_.decisions = message.decisions;
    {
      MutexLock lock(decide_mutex_);
      decisions_ = message.decisions;
    }
    core_->SetHost(welcome_.host_pid, welcome_.log_path);
    return Status::Ok();
  }

  Result<std::shared_ptr<const ClientBatch>> Next(Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    WS_RETURN_IF_ERROR(EnterNext(deadline));
    Result<std::shared_ptr<const ClientBatch>> batch = NextAlone(deadline);
    LeaveNext(batch.ok() && *batch != nullptr ? std::optional((*batch)->view.step + 1)
                                              : std::nullopt);
    return batch;
  }

  Result<std::string> StateJson(std::optional<std::uint64_t> step, Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    if (!step) {
      MutexLock lock(mutex_);
      step = next_state_;
    }
    return Text(MessageType::kState, Encode(delivery::StateRequest{step}), deadline);
  }

  Result<std::uint64_t> Decide(const Decision& asked, Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    // One at a time, so that the numbers go out in order.
    MutexLock lock(decide_mutex_);
    Decision decision = asked;
    WS_ASSIGN_OR_RETURN(const std::uint64_t undelivered, FirstUndelivered(deadline));
    decision.step = std::max(decision.step, undelivered);
    WS_RETURN_IF_ERROR(core_->CheckAlive());
    const std::uint32_t request =
        core_->Ask(MessageType::kDecide, Encode(delivery::DecideRequest{decisions_, decision}));
    ++decisions_;
    WS_ASSIGN_OR_RETURN(const ClientCore::Answer answer, core_->AwaitOnce(request, deadline));
    WS_RETURN_IF_ERROR(Expect(answer, MessageType::kNumber));
    return delivery::DecodeNumber(answer.frame.body);
  }

  Status CommitJournal(Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    WS_ASSIGN_OR_RETURN(const ClientCore::Answer answer,
                        core_->Call(MessageType::kCommit, {}, deadline));
    return Expect(answer, MessageType::kDone);
  }

  Result<std::string> StatusJson(Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    return Text(MessageType::kStatus, {}, deadline);
  }

  Result<StepPlan> Plan(std::uint64_t step, Deadline deadline) override {
    WS_RETURN_IF_ERROR(CheckProcess());
    WS_ASSIGN_OR_RETURN(const std::string bytes,
                        Text(MessageType::kPlan, delivery::EncodeNumber(step), deadline));
    return DecodeStepPlan(bytes);
  }

  Status CheckAlive() override {
    WS_RETURN_IF_ERROR(CheckProcess());
    return core_->CheckAlive();
  }

  void Close() override {
    if (core_->in_own_process()) core_->Close(Status::Cancelled("the client was closed"));
  }
  void DisconnectForTesting() override { core_->ShutDown(); }
  const Welcome& welcome() const override { return welcome_; }
  ClientCounters counters() const override { return core_->counters(); }

 private:
  Status CheckProcess() const {
    if (core_->in_own_process()) return Status::Ok();
    return Status::InvalidArgument(
        "this process is a fork of the one that attached to the host; only that one may use the "
        "client. Attach after the fork, with a rank of its own, or use spawn");
  }

  static Status Expect(const ClientCore::Answer& answer, MessageType type) {
    if (answer.frame.type == type) return Status::Ok();
    return Status::DataCorruption(StrCat("the host answered with message type ",
                                         static_cast<int>(answer.frame.type), " instead of ",
                                         static_cast<int>(type)));
  }

  Result<std::string> Text(MessageType type, const std::string& body, Deadline deadline) {
    WS_ASSIGN_OR_RETURN(const ClientCore::Answer answer, core_->Call(type, body, deadline));
    WS_RETURN_IF_ERROR(Expect(answer, MessageType::kText));
    WS_ASSIGN_OR_RETURN(delivery::TextMessage message,
                        delivery::DecodeText(answer.frame.body, answer.descriptor.valid()));
    if (!answer.descriptor.valid()) return std::move(message.text);
    return delivery::TextFromDescriptor(answer.descriptor.get(), message.size_bytes);
  }

  Status EnterNext(Deadline deadline) {
    MutexLock lock(mutex_);
    while (in_next_) {
      changed_.WaitUntil(mutex_, deadline);
      if (in_next_ && steady_clock::now() >= deadline) {
        return Status::DeadlineExceeded("another thread waits for the next batch");
      }
    }
    in_next_ = true;
    return Status::Ok();
  }

  void LeaveNext(std::optional<std::uint64_t> next_state) {
    MutexLock lock(mutex_);
    in_next_ = false;
    if (next_state) next_state_ = next_state;
    changed_.NotifyAll();
  }

  // The first step that this rank has neither had nor asked for: what a decision may change. A step
  // that is asked for is waited for, so that it is never a matter of timing whether a decision came
  // before it. 0: this rank has had none.
  Result<std::uint64_t> FirstUndelivered(Deadline deadline) {
    WS_RETURN_IF_ERROR(EnterNext(deadline));
    const Result<std::uint64_t> first = FirstUndeliveredAlone(deadline);
    LeaveNext(std::nullopt);
    return first;
  }

  // This and the next three are used by one thread at a time: in_next_.
  Result<std::uint64_t> FirstUndeliveredAlone(Deadline deadline) {
    if (request_ != 0) {
      core_->FlushLater();
      const Result<bool> there = AwaitAhead(deadline);
      // What failed or ended is asked for again: the decision may change it.
      if (there.ok() && !*there) return Explain();
    }
    const std::uint64_t behind = last_ ? *last_ + 1 : 0;
    return ahead_ ? std::max(behind, ahead_->message.step + 1) : behind;
  }

  // Sets ahead_, or leaves it empty at the end. False: not there at the deadline.
  Result<bool> AwaitAhead(Deadline deadline) {
    Result<std::optional<ClientCore::Answer>> awaited = core_->Await(request_, deadline);
    if (!awaited.ok()) {
      core_->Forget(std::exchange(request_, 0));
      return awaited.status();
    }
    std::optional<ClientCore::Answer>& answer = *awaited;
    if (!answer) return false;
    request_ = 0;
    if (answer->frame.type == MessageType::kEnd) return true;
    WS_RETURN_IF_ERROR(Expect(*answer, MessageType::kBatch));
    WS_ASSIGN_OR_RETURN(delivery::BatchMessage message, delivery::DecodeBatch(answer->frame.body));
    ahead_.emplace(std::move(message), std::move(answer->descriptor));
    return true;
  }

  Result<std::shared_ptr<const ClientBatch>> NextAlone(Deadline deadline) {
    if (!ahead_) {
      if (request_ == 0) {
        request_ = core_->Ask(MessageType::kNext,
                              delivery::EncodeNumber(last_.value_or(delivery::kFromBeginning)));
      } else {
        core_->FlushLater();
      }
      WS_ASSIGN_OR_RETURN(const bool there, AwaitAhead(deadline));
      if (!there) return Explain();
      if (!ahead_) return std::shared_ptr<const ClientBatch>();
    }
    Ahead taken = std::move(*ahead_);
    ahead_.reset();
    const std::uint64_t step = taken.message.step;
    WS_ASSIGN_OR_RETURN(std::shared_ptr<const ClientBatch> batch,
                        core_->Map(std::move(taken.message), std::move(taken.descriptor)));
    last_ = step;
    // Goes with the release of the step before this one, or with the next call.
    if (options_.prefetch) {
      request_ = core_->AskLater(MessageType::kNext, delivery::EncodeNumber(step));
    }
    return batch;
  }

  // The deadline passed: what does the host wait for?
  Status Explain() {
    const Result<std::string> text =
        Text(MessageType::kExplain, {}, steady_clock::now() + kExplainTime);
    if (text.ok()) {
      return Status::DeadlineExceeded(StrCat("the next batch is not ready: ", *text));
    }
    if (text.status().code() != StatusCode::kDeadlineExceeded) return text.status();
    return Status::DeadlineExceeded(
        StrCat("the next batch is not there, and the host process ", welcome_.host_pid,
               " does not say why; is it stopped or overloaded?",
               welcome_.log_path.empty() ? "" : " Its log is ", welcome_.log_path));
  }

  struct Ahead {
    Ahead(delivery::BatchMessage batch, delivery::FileDescriptor slab)
        : message(std::move(batch)), descriptor(std::move(slab)) {}
    delivery::BatchMessage message;
    delivery::FileDescriptor descriptor;
  };

  const ClientOptions options_;
  const std::shared_ptr<ClientCore> core_;
  Welcome welcome_;  // set once, before anybody else sees this object

  Mutex mutex_;
  CondVar changed_;
  bool in_next_ WS_GUARDED_BY(mutex_) = false;
  std::optional<std::uint64_t> next_state_ WS_GUARDED_BY(mutex_);  // the step that follows
  // Owned by the thread that has set in_next_.
  std::optional<std::uint64_t> last_;
  std::uint32_t request_ = 0;   // for the step after last_, unless that is ahead_
  std::optional<Ahead> ahead_;  // arrived, not yet returned

  Mutex decide_mutex_;
  std::uint64_t decisions_ WS_GUARDED_BY(decide_mutex_) = 0;
};

}  // namespace

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options, Deadline deadline) {
  WS_ASSIGN_OR_RETURN(delivery::FileDescriptor socket, delivery::Connect(options.socket_path));
  WS_ASSIGN_OR_RETURN(const delivery::PeerCredentials peer, delivery::Peer(socket.get()));
  if (peer.uid != geteuid()) {
    return Status::InvalidArgument(StrCat("the host at ", options.socket_path, " runs as user ",
                                          peer.uid, ", not as user ", geteuid(),
                                          "; start both as the same user"));
  }
  auto core = std::make_shared<ClientCore>(std::move(socket), peer.pid);
  auto client = std::make_unique<SocketClient>(std::move(options), std::move(core));
  WS_RETURN_IF_ERROR(client->SayHello(deadline));
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace widestream
