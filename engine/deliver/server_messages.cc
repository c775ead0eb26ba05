// What clients ask of the server, and its answers.
#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/deliver/server_loop.h"

namespace widestream::delivery {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMaxWaiting = 4;
constexpr std::size_t kMaxQuestions = 64;
constexpr std::size_t kMaxNamed = 16;

}  // namespace

void ServerLoop::Refuse(Connection& connection, std::uint32_t request, const Status& why) {
  connection.SendError(request, why);
  connection.close_when_sent = true;
  connection.waiting.clear();
  if (connection.phase == Connection::Phase::kAttached) figures_.last_left_gracefully = false;
  connection.phase = Connection::Phase::kLeaving;
  if (LiveClients() == 0) figures_.idle_since = steady_clock::now();
  notify_ = true;
}

void ServerLoop::HandleFrame(Connection& connection, const Frame& frame) {
  if (connection.close_when_sent) return;
  switch (connection.phase) {
    case Connection::Phase::kGreeting:
      if (frame.type == MessageType::kHello) {
        HandleHello(connection, frame);
      } else {
        Refuse(connection, frame.request,
               Status::InvalidArgument("a client must begin with a hello"));
      }
      return;
    case Connection::Phase::kOpening:
      if (frame.type == MessageType::kBye) {
        HandleGoodbye(connection);
      } else {
        Refuse(connection, frame.request,
               Status::InvalidArgument("a client must wait for its welcome"));
      }
      return;
    case Connection::Phase::kLeaving:
      if (frame.type == MessageType::kRelease) {
        const Status status = HandleRelease(connection, frame);
        if (!status.ok()) Refuse(connection, frame.request, status);
      }
      return;
    case Connection::Phase::kAttached:
      HandleAttached(connection, frame);
      return;
  }
}

void ServerLoop::HandleAttached(Connection& connection, const Frame& frame) {
  if (connection.questions >= kMaxQuestions && frame.type != MessageType::kNext &&
      frame.type != MessageType::kRelease && frame.type != MessageType::kBye) {
    Refuse(connection, frame.request, Status::InvalidArgument("too many questions at once"));
    return;
  }
  Status status;
  switch (frame.type) {
    case MessageType::kNext:
      status = HandleNext(connection, frame);
      break;
    case MessageType::kRelease:
      status = HandleRelease(connection, frame);
      break;
    case MessageType::kState:
      status = HandleState(connection, frame);
      break;
    case MessageType::kDecide:
      status = HandleDecide(connection, frame);
      break;
    case MessageType::kPlan:
      status = HandlePlan(connection, frame);
      break;
    case MessageType::kExplain:
      HandleExplain(connection, frame);
      break;
    case MessageType::kBye:
      HandleGoodbye(connection);
      break;
    case MessageType::kCommit:
      Ask(connection, [provider = session_->provider, request = frame.request]() -> Answer {
        const Status committed = provider->CommitJournal();
        return [committed, request](Connection& client) {
          if (!committed.ok()) return client.SendError(request, committed);
          client.Send(MessageType::kDone, request, {});
        };
      });
      break;
    case MessageType::kStatus:
      Ask(connection, [this, provider = session_->provider, request = frame.request]() -> Answer {
        std::string text = StrCat("{\"pipeline\": ", provider->StatusJson(),
                                  ", \"delivery\": ", FiguresJson(), "}");
        return [text, request](Connection& client) { SendText(client, request, text); };
      });
      break;
    default:
      status = Status::InvalidArgument(
          StrCat("message type ", static_cast<int>(frame.type), " is not for a host"));
  }
  // Semantic errors are answered by the handlers; what is left is nonsense on the wire.
  if (!status.ok()) Refuse(connection, frame.request, status);
}

void ServerLoop::Ask(Connection& connection, std::function<Answer()> task) {
  ++connection.questions;
  RunOnWorker([this, id = connection.id(), task = std::move(task)] {
    Answer answer = task();
    Post([this, id, answer = std::move(answer)] {
      mutex_.AssertHeld();
      Connection* client = Find(id);
      if (client == nullptr) return;
      --client->questions;
      answer(*client);
    });
  });
}

void ServerLoop::SendText(Connection& connection, std::uint32_t request,
                          const Result<std::string>& text) {
  if (!text.ok()) return connection.SendError(request, text.status());
  if (text->size() <= kMaxInlineTextBytes) {
    connection.Send(MessageType::kText, request, Encode(TextMessage{text->size(), *text}));
    return;
  }
  Result<FileDescriptor> file = TextToDescriptor(*text);
  if (!file.ok()) return connection.SendError(request, file.status());
  connection.Send(MessageType::kText, request, Encode(TextMessage{text->size(), {}}), nullptr,
                  std::move(*file));
}

Status ServerLoop::HandleNext(Connection& connection, const Frame& frame) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t after, DecodeNumber(frame.body));
  const ServedPlace& place = options_.places[connection.place];
  if (connection.waiting.size() >= kMaxWaiting) {
    return Status::InvalidArgument("too many steps are asked for at once");
  }
  if (!place.fetches) {
    connection.SendError(frame.request, Status::InvalidArgument(StrCat(
                                            "rank ", place.rank, " gets no batches: ", "rank ",
                                            place.leader, " fetches and broadcasts them")));
    return Status::Ok();
  }
  connection.waiting.push_back({frame.request,
                                after == kFromBeginning ? std::nullopt : std::optional(after),
                                steady_clock::now()});
  return Status::Ok();
}

Status ServerLoop::HandleRelease(Connection& connection, const Frame& frame) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t step, DecodeNumber(frame.body));
  if (connection.leases.erase(step) == 0) {
    return Status::InvalidArgument(StrCat("step ", step, " was released but is not held"));
  }
  if (session_ != nullptr && session_->id == connection.session) {
    return session_->window.Acknowledge(connection.place, step);
  }
  return Status::Ok();
}

Status ServerLoop::HandleState(Connection& connection, const Frame& frame) {
  WS_ASSIGN_OR_RETURN(const StateRequest asked, DecodeStateRequest(frame.body));
  if (!asked.step) {
    SendText(connection, frame.request, session_->initial_state_json);
    return Status::Ok();
  }
  Ask(connection,
      [provider = session_->provider, request = frame.request, step = *asked.step]() -> Answer {
        const Result<std::string> state = provider->StateJson(step);
        return [state, request](Connection& client) { SendText(client, request, state); };
      });
  return Status::Ok();
}

Status ServerLoop::HandleDecide(Connection& connection, const Frame& frame) {
  WS_ASSIGN_OR_RETURN(DecideRequest asked, DecodeDecide(frame.body));
  std::uint64_t& made = session_->decisions_by_place[connection.place];
  if (asked.number != made) {
    return Status::InvalidArgument(
        StrCat("decision ", asked.number, " came where decision ", made, " was expected"));
  }
  // Where it takes effect is said by the ranks that fetch: behind what they have been given. The
  // others are told.
  const bool fetches = options_.places[connection.place].fetches;
  Decision content = asked.decision;
  content.step = 0;
  const Hash128 hash = Xxh3_128(widestream::Encode(content));
  if (asked.number == session_->decisions.size()) {
    session_->decisions.emplace_back().content = hash;
  }
  Session::Decided& decided = session_->decisions[asked.number];
  if (decided.content != hash ||
      (fetches && decided.step && *decided.step != asked.decision.step)) {
    connection.SendError(
        frame.request,
        Status::InvalidArgument(StrCat(
            "decision ", asked.number, " of rank ", options_.places[connection.place].rank,
            " differs from that of another rank; all ranks must make the same decisions in the "
            "same order, after the same batch")));
    return Status::Ok();
  }
  ++made;
  if (fetches) decided.step = asked.decision.step;
  if (!decided.outcome) {
    decided.questioners.emplace_back(connection.id(), frame.request);
  } else if (decided.outcome->ok()) {
    connection.Send(MessageType::kNumber, frame.request, EncodeNumber(**decided.outcome));
  } else {
    connection.SendError(frame.request, decided.outcome->status());
  }
  const bool any_fetches = std::any_of(options_.places.begin(), options_.places.end(),
                                       [](const ServedPlace& place) { return place.fetches; });
  if (!decided.started && (fetches || !any_fetches)) {
    decided.started = true;
    StartDecision(asked.number, std::move(asked.decision));
  }
  return Status::Ok();
}

void ServerLoop::StartDecision(std::uint64_t index, Decision decision) {
  RunOnWorker([this, session = session_->id, provider = session_->provider, index,
               decision = std::move(decision)] {
    const Result<std::uint64_t> outcome = provider->Decide(decision);
    const Result<std::string> state = provider->StateJson(std::nullopt);
    Post([this, session, index, outcome, state] {
      mutex_.AssertHeld();
      if (session_ == nullptr || session_->id != session) return;
      if (session_->window.pushed() == 0 && state.ok()) session_->initial_state_json = *state;
      Session::Decided& decided = session_->decisions[index];
      decided.outcome = outcome;
      for (const auto& [id, request] : std::exchange(decided.questioners, {})) {
        Connection* client = Find(id);
        if (client == nullptr) continue;
        if (outcome.ok()) {
          client->Send(MessageType::kNumber, request, EncodeNumber(*outcome));
        } else {
          client->SendError(request, outcome.status());
        }
      }
    });
  });
}

Status ServerLoop::HandlePlan(Connection& connection, const Frame& frame) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t number, DecodeNumber(frame.body));
  const std::shared_ptr<const Step> step = session_->window.InMemory(number);
  if (step == nullptr || step->plan == nullptr) {
    connection.SendError(
        frame.request,
        Status::NotFound(StrCat("the plan of step ", number,
                                " is not in memory: it is kept until all ranks of the node have "
                                "released the step; the journal has it")));
    return Status::Ok();
  }
  Ask(connection, [plan = step->plan, request = frame.request]() -> Answer {
    const Result<std::string> text = widestream::Encode(*plan);
    return [text, request](Connection& client) { SendText(client, request, text); };
  });
  return Status::Ok();
}

void ServerLoop::HandleExplain(Connection& connection, const Frame& frame) {
  Ask(connection,
      [provider = session_->provider, holders = Holders(), request = frame.request]() -> Answer {
        std::string text = StrCat("the pipeline says ", provider->StatusJson());
        if (!holders.empty()) StrAppend(text, "; ", holders);
        return [text, request](Connection& client) { SendText(client, request, text); };
      });
}

void ServerLoop::HandleGoodbye(Connection& connection) {
  if (connection.phase == Connection::Phase::kAttached) figures_.last_left_gracefully = true;
  connection.phase = Connection::Phase::kLeaving;
  connection.waiting.clear();
  if (LiveClients() == 0) figures_.idle_since = steady_clock::now();
  notify_ = true;
}

void ServerLoop::Pump() {
  if (session_ == nullptr || session_->provider == nullptr) return;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase != Connection::Phase::kAttached) continue;
    while (!connection->waiting.empty() && !connection->clogged() && ServeOne(*connection)) {
    }
  }
}

bool ServerLoop::ServeOne(Connection& connection) {
  const Connection::Waiting asked = connection.waiting.front();
  const auto answer = [&](const Status& error) {
    connection.SendError(asked.request, error);
    connection.waiting.pop_front();
    return true;
  };
  const std::string context = StrCat("rank ", options_.places[connection.place].rank);
  const Result<std::shared_ptr<const Step>> found =
      session_->window.Find(connection.place, asked.after);
  if (!found.ok()) return answer(found.status().WithContext(context));
  if (*found != nullptr) {
    SendStep(connection, asked, *found);
    connection.waiting.pop_front();
    return true;
  }
  bool ended = false;
  Result<std::shared_ptr<const Step>> pulled = session_->provider->TryNext(&ended);
  if (!pulled.ok()) {
    const std::string holders = Holders();
    if (pulled.status().code() == StatusCode::kResourceExhausted && !holders.empty()) {
      return answer(
          Status::ResourceExhausted(StrCat(pulled.status().message(), " (", holders, ")")));
    }
    return answer(pulled.status());
  }
  if (*pulled == nullptr) {
    if (!ended) return false;
    connection.Send(MessageType::kEnd, asked.request, {});
    connection.waiting.pop_front();
    return true;
  }
  ++figures_.steps_pulled;
  const Status pushed = session_->window.Push(std::move(*pulled));
  if (!pushed.ok()) return answer(pushed);
  return true;
}

void ServerLoop::SendStep(Connection& connection, const Connection::Waiting& asked,
                          const std::shared_ptr<const Step>& step) {
  const ServedPlace& place = options_.places[connection.place];
  if (place.bucket >= step->buckets.size() || step->buckets[place.bucket].slab == nullptr) {
    connection.SendError(asked.request,
                         Status::Internal(StrCat("step ", step->number, " has no bucket ",
                                                 place.bucket, " for rank ", place.rank)));
    return;
  }
  const Bucket& bucket = step->buckets[place.bucket];
  BatchMessage message;
  message.step = step->number;
  message.slab_id = bucket.slab->id();
  message.slab_bytes = bucket.slab->file_bytes();
  message.view = options_.select ? options_.select(bucket.view, place) : bucket.view;
  for (const MicrobatchView& microbatch : message.view.microbatches) {
    for (const TensorView& tensor : microbatch.tensors) {
      if (tensor.slices == 1) continue;
      connection.SendError(asked.request, Status::Internal(StrCat(
                                              "tensor '", tensor.name, "' of step ", step->number,
                                              " is not cut for rank ", place.rank)));
      return;
    }
  }
  message.weights = step->weights;
  message.tokens_by_source.assign(step->weights.size(), 0);
  if (step->plan != nullptr) {
    message.real_tokens = step->plan->real_tokens;
    message.supervised_tokens = step->plan->supervised_tokens;
    message.digest = step->plan->digest;
    for (const RankPlan& rank : step->plan->ranks) message.costs.push_back(rank.cost);
    for (const Piece& piece : step->plan->pieces) {
      if (piece.source < message.tokens_by_source.size()) {
        message.tokens_by_source[piece.source] += piece.length;
      }
    }
  }
  for (auto it = connection.slabs.begin(); it != connection.slabs.end();) {
    if (it->second.expired()) {
      message.gone.push_back(it->first);
      it = connection.slabs.erase(it);
    } else {
      ++it;
    }
  }
  const bool first = connection.slabs.emplace(message.slab_id, bucket.slab->lifetime()).second;
  if (first) ++figures_.descriptors_sent;
  ++figures_.batches_sent;
  connection.leases[step->number] = bucket.slab;
  connection.Send(MessageType::kBatch, asked.request, Encode(message),
                  first ? bucket.slab : nullptr);
}

std::string ServerLoop::Holders() const {
  if (session_ == nullptr) return "";
  std::string text;
  std::size_t named = 0;
  for (std::size_t i = 0; i < options_.places.size(); ++i) {
    const std::vector<std::uint64_t> steps = session_->window.Unacknowledged(i);
    if (steps.empty()) continue;
    if (++named > kMaxNamed) return text + "; and more";
    StrAppend(text, text.empty() ? "" : "; ", "rank ", options_.places[i].rank);
    if (Attached(i) != nullptr) {
      StrAppend(text, " (process ", last_pid_[i], ")");
    } else if (last_pid_[i] != 0) {
      StrAppend(text, " (its process ", last_pid_[i], " is gone)");
    } else {
      text += " (not attached yet)";
    }
    StrAppend(text, " has not released step", steps.size() == 1 ? " " : "s ", Ranges(steps));
  }
  return text;
}

std::string ServerLoop::FiguresJson() const {
  const ServerStatus now = status();
  std::string text = StrCat(
      "{\"clients\": ", now.clients, ", \"sessions\": ", now.sessions,
      ", \"steps_in_memory\": ", now.steps_in_memory, ", \"steps_pulled\": ", now.steps_pulled,
      ", \"batches_sent\": ", now.batches_sent, ", \"descriptors_sent\": ", now.descriptors_sent,
      ", \"bytes_copied\": ", now.bytes_copied, ", \"places\": [");
  for (std::size_t i = 0; i < now.places.size(); ++i) {
    const PlaceStatus& place = now.places[i];
    StrAppend(text, i == 0 ? "" : ", ", "{\"rank\": ", place.rank,
              ", \"attached\": ", place.attached, ", \"pid\": ", place.pid,
              ", \"unacknowledged\": [");
    for (std::size_t j = 0; j < place.unacknowledged.size(); ++j) {
      StrAppend(text, j == 0 ? "" : ", ", place.unacknowledged[j]);
    }
    text += "]}";
  }
  return text + "]}";
}

}  // namespace widestream::delivery
