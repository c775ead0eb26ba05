// Who may attach to the server, and the sessions that clients share.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/deliver/server_loop.h"

namespace widestream::delivery {
namespace {

constexpr std::size_t kMaxNamed = 16;

// Which keys of two jobs differ, for people.
std::string Differences(const std::vector<std::pair<std::string, std::string>>& here,
                        const std::vector<std::pair<std::string, std::string>>& there) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, value] : here) values[key].first = value;
  for (const auto& [key, value] : there) values[key].second = value;
  std::string text;
  std::size_t named = 0;
  for (const auto& [key, pair] : values) {
    if (pair.first == pair.second) continue;
    if (++named > kMaxNamed) return text + ", and more";
    StrAppend(text, text.empty() ? "" : ", ", Quoted(key), " (the host has ", Quoted(pair.first),
              ", the trainer ", Quoted(pair.second), ")");
  }
  return text;
}

// "step 7", for people: the first "step" of a state document.
std::string StepOf(const std::string& state_json) {
  if (state_json.empty()) return "the beginning";
  const std::size_t key = state_json.find("\"step\"");
  if (key == std::string::npos) return "a state";
  const std::size_t begin = state_json.find_first_of("0123456789", key);
  if (begin == std::string::npos) return "a state";
  const std::size_t end = state_json.find_first_not_of("0123456789", begin);
  return "step " + state_json.substr(begin, std::min<std::size_t>(end - begin, 20));
}

}  // namespace

void ServerLoop::HandleHello(Connection& connection, const Frame& frame) {
  Result<Hello> hello = DecodeHello(frame.body);
  if (!hello.ok()) {
    Refuse(connection, frame.request, hello.status());
    return;
  }
  connection.hello_request = frame.request;
  connection.begin_step = hello->begin_step;
  Status status = CheckHello(*hello, &connection.place);
  if (status.ok()) status = JoinSession(connection, *hello);
  if (!status.ok()) {
    Refuse(
        connection, frame.request,
        status.WithContext(StrCat("the host (process ", getpid(), ") refuses rank ", hello->rank)));
  }
}

Status ServerLoop::CheckHello(const Hello& hello, std::size_t* place) const {
  if (hello.job_hash != options_.job_hash) {
    const std::string differences = Differences(options_.job_keys, hello.job_keys);
    // A host that nobody uses, of an earlier job, may make room for another.
    const StatusCode code =
        LiveClients() == 0 ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
    return Status(code,
                  StrCat("it runs another job: ",
                         differences.empty() ? StrCat("hash ", Quoted(options_.job_hash), " here, ",
                                                      Quoted(hello.job_hash), " in the trainer")
                                             : differences,
                         "; all ranks need the same job, and each job a host of its own"));
  }
  if (hello.world != options_.world) {
    return Status::InvalidArgument(StrCat("it was started for a world of ", options_.world,
                                          " ranks, the trainer has ", hello.world));
  }
  for (std::size_t i = 0; i < options_.places.size(); ++i) {
    if (options_.places[i].rank != hello.rank) continue;
    *place = i;
    return Status::Ok();
  }
  std::vector<std::uint64_t> served;
  served.reserve(options_.places.size());
  for (const ServedPlace& served_place : options_.places) served.push_back(served_place.rank);
  std::sort(served.begin(), served.end());
  return Status::InvalidArgument(
      StrCat("it serves the ranks ", Ranges(served), " of a world of ", options_.world));
}

Status ServerLoop::JoinSession(Connection& connection, const Hello& hello) {
  const std::size_t live = LiveClients();
  bool same = session_ != nullptr && session_->launcher_id == hello.launcher_id &&
              session_->state_json == hello.state_json && session_->fork == hello.fork;
  if (same) {
    if (const Connection* other = Attached(connection.place)) {
      // It may be about to end, or to go.
      return Status::Unavailable(StrCat("process ", other->pid(),
                                        " is attached as this rank already; every process "
                                        "needs a rank of its own"));
    }
    // A rank begins again: another start of the training, once all are gone.
    if (!hello.begin_step && session_->window.AnyAcknowledged(connection.place)) {
      if (live > 0) {
        return Status::Unavailable(
            StrCat("it begins again where the session began, while ", live,
                   live == 1 ? " client goes" : " clients go",
                   " on; let all ranks begin again, or attach at the step that it needs"));
      }
      same = false;
    }
  } else if (live > 0) {
    std::string what;
    if (session_->launcher_id != hello.launcher_id) {
      StrAppend(what, "another start of the training (", Quoted(session_->launcher_id), " here, ",
                Quoted(hello.launcher_id), " in the trainer)");
    }
    if (session_->state_json != hello.state_json) {
      StrAppend(what, what.empty() ? "" : ", ", "another state (", StepOf(session_->state_json),
                " here, ", StepOf(hello.state_json), " in the trainer)");
    }
    if (session_->fork != hello.fork) {
      StrAppend(what, what.empty() ? "" : ", ", "fork ", session_->fork ? "on" : "off", " here, ",
                hello.fork ? "on" : "off", " in the trainer");
    }
    // When all ranks go back to a state, the last of them ends the old session.
    return Status::Unavailable(StrCat(
        live, live == 1 ? " client is" : " clients are", " still served in another session: ", what,
        "; begin all ranks from the same state, or stop the other training first"));
  }
  if (!same) OpenSession(hello);
  connection.phase = Connection::Phase::kOpening;
  connection.session = session_->id;
  if (session_->provider != nullptr) return AttachToSession(connection);
  return Status::Ok();
}

void ServerLoop::OpenSession(const Hello& hello) {
  CloseSession();
  std::vector<bool> fetches;
  fetches.reserve(options_.places.size());
  for (const ServedPlace& place : options_.places) fetches.push_back(place.fetches);
  session_ = std::make_unique<Session>(next_session_++, fetches);
  session_->launcher_id = hello.launcher_id;
  session_->state_json = hello.state_json;
  session_->fork = hello.fork;
  RunOnWorker([this, id = session_->id, state = hello.state_json, fork = hello.fork] {
    std::string description;
    std::string initial_state;
    const auto open = [&]() -> Result<std::shared_ptr<StepProvider>> {
      WS_ASSIGN_OR_RETURN(std::unique_ptr<StepProvider> opened, factory_->Open(state, fork));
      const std::shared_ptr<StepProvider> provider = std::move(opened);
      WS_ASSIGN_OR_RETURN(initial_state, provider->StateJson(std::nullopt));
      description = provider->DescriptionJson();
      provider->NotifyWhenReady([this] { Wake(); });
      return provider;
    };
    Result<std::shared_ptr<StepProvider>> provider = open();
    Post([this, id, provider, description, initial_state] {
      mutex_.AssertHeld();
      SessionOpened(id, provider, description, initial_state);
    });
  });
}

void ServerLoop::SessionOpened(std::uint64_t id, Result<std::shared_ptr<StepProvider>> provider,
                               std::string description, std::string state) {
  if (session_ == nullptr || session_->id != id) {
    // Nobody waits for it any more.
    if (provider.ok()) RunOnWorker([unwanted = *provider] { unwanted->Stop(); });
    return;
  }
  std::vector<Connection*> opening;
  for (const auto& [key, connection] : connections_) {
    if (connection->phase == Connection::Phase::kOpening && connection->session == id) {
      opening.push_back(connection.get());
    }
  }
  if (!provider.ok()) {
    session_.reset();
    for (Connection* connection : opening) {
      Refuse(*connection, connection->hello_request, provider.status());
    }
    return;
  }
  ++figures_.sessions;
  session_->provider = std::move(*provider);
  session_->description_json = std::move(description);
  session_->initial_state_json = std::move(state);
  for (Connection* connection : opening) {
    const Status status = AttachToSession(*connection);
    if (!status.ok()) Refuse(*connection, connection->hello_request, status);
  }
}

void ServerLoop::CloseSession() {
  if (session_ == nullptr) return;
  if (session_->provider != nullptr) {
    RunOnWorker([provider = std::move(session_->provider)] { provider->Stop(); });
  }
  session_.reset();
}

Status ServerLoop::AttachToSession(Connection& connection) {
  const ServedPlace& place = options_.places[connection.place];
  if (connection.begin_step) {
    WS_RETURN_IF_ERROR(session_->window.Begin(connection.place, *connection.begin_step));
  }
  connection.phase = Connection::Phase::kAttached;
  last_pid_[connection.place] = connection.pid();
  ++figures_.clients_ever;
  notify_ = true;
  WelcomeMessage welcome;
  welcome.host_pid = getpid();
  welcome.log_path = options_.log_path;
  welcome.description_json = session_->description_json;
  welcome.dp = place.dp;
  welcome.cp = place.cp;
  welcome.tp = place.tp;
  welcome.pp = place.pp;
  welcome.fetches = place.fetches;
  welcome.leader = place.fetches ? place.rank : place.leader;
  welcome.decisions = session_->decisions_by_place[connection.place];
  connection.Send(MessageType::kWelcome, connection.hello_request, Encode(welcome));
  return Status::Ok();
}

}  // namespace widestream::delivery
