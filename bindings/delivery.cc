// The node's host server and its clients for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/batch.h"
#include "bindings/errors.h"
#include "engine/deliver/client.h"
#include "engine/deliver/constant_provider.h"
#include "engine/deliver/server.h"
#include "engine/job/spec.h"
#include "engine/runtime/node_host.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

using Clock = std::chrono::steady_clock;

// Questions other than for a batch are answered by a host that is alive in far less.
constexpr std::chrono::seconds kAnswerTime{60};

Clock::time_point In(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Runs `call` without the GIL and gives its value, or raises its error.
template <typename F>
auto Released(F call) {
  auto result = [&] {
    nb::gil_scoped_release release;
    return call();
  }();
  return ValueOrThrow(std::move(result));
}

// A rank's client; batches keep it for questions about their plan.
class AttachedClient {
 public:
  explicit AttachedClient(std::shared_ptr<Client> client) : client_(std::move(client)) {}

  Client& client() { return *client_; }

  Result<BatchPointer> Next(Clock::time_point deadline) {
    WS_ASSIGN_OR_RETURN(const std::shared_ptr<const ClientBatch> taken, client_->Next(deadline));
    if (!taken) return BatchPointer();
    auto batch = std::make_shared<DeliveredBatch>();
    batch->step = taken->view.step;
    batch->dp_rank = taken->view.rank;
    batch->supervised_tokens = taken->supervised_tokens;
    batch->real_tokens = taken->real_tokens;
    batch->size_bytes = taken->view.size_bytes;
    batch->digest = taken->digest;
    batch->costs = taken->costs;
    batch->weights = taken->weights;
    batch->tokens_by_source = taken->tokens_by_source;
    batch->microbatches = {taken, &taken->view.microbatches};
    batch->memory = taken->memory;
    batch->owner = taken;
    batch->plan = [client = client_,
                   step = batch->step]() -> Result<std::shared_ptr<const StepPlan>> {
      WS_ASSIGN_OR_RETURN(StepPlan plan, client->Plan(step, Clock::now() + kAnswerTime));
      return std::make_shared<const StepPlan>(std::move(plan));
    };
    return BatchPointer(std::move(batch));
  }

  std::uint64_t Decide(const Decision& decision) {
    return Released([&] { return client_->Decide(decision, Clock::now() + kAnswerTime); });
  }

 private:
  std::shared_ptr<Client> client_;
};

std::unique_ptr<AttachedClient> MakeClient(const std::string& socket_path,
                                           const std::string& job_json, std::uint32_t rank,
                                           std::uint32_t world, const std::string& launch_id,
                                           const std::string& state_json, bool fork,
                                           std::optional<std::uint64_t> begin_step,
                                           double timeout_seconds) {
  std::shared_ptr<Client> client = Released([&]() -> Result<std::unique_ptr<Client>> {
    ClientOptions options;
    options.socket_path = socket_path;
    options.rank = rank;
    options.world = world;
    // Constant steps belong to no job.
    if (!job_json.empty()) {
      WS_ASSIGN_OR_RETURN(const JobSpec job, ParseJob(job_json));
      JobIdentity identity = IdentityOf(job);
      options.job_hash = std::move(identity.hash);
      options.job_keys = std::move(identity.keys);
    }
    options.launcher_id = launch_id;
    options.state_json = state_json;
    options.fork = fork;
    options.begin_step = begin_step;
    // The next batch is mapped while the trainer works on this one.
    options.prefetch = true;
    return Client::Connect(std::move(options), In(timeout_seconds));
  });
  return std::make_unique<AttachedClient>(std::move(client));
}

Result<std::unique_ptr<Server>> ServeConstant(const std::string& folder,
                                              const ConstantSteps& shape) {
  class Factory final : public SessionFactory {
   public:
    explicit Factory(const ConstantSteps& shape) : shape_(shape) {}
    Result<std::unique_ptr<StepProvider>> Open(const std::string&, bool) override {
      return MakeConstantProvider(shape_);
    }

   private:
    ConstantSteps shape_;
  };
  ServerOptions options;
  options.folder = folder;
  options.world = shape.buckets;
  for (std::uint32_t rank = 0; rank < shape.buckets; ++rank) {
    ServedPlace place;
    place.rank = place.bucket = place.leader = place.dp = rank;
    options.places.push_back(place);
  }
  return Server::Make(std::move(options), std::make_unique<Factory>(shape));
}

nb::dict ServerStatusOf(const Server& server) {
  const ServerStatus status = server.status();
  nb::dict out;
  out["clients"] = status.clients;
  out["clients_ever"] = status.clients_ever;
  out["last_left_gracefully"] = status.last_left_gracefully;
  const std::chrono::duration<double> idle = Clock::now() - status.idle_since;
  out["idle_seconds"] = status.clients == 0 ? idle.count() : 0.0;
  out["sessions"] = status.sessions;
  out["steps_in_memory"] = status.steps_in_memory;
  out["steps_pulled"] = status.steps_pulled;
  out["batches_sent"] = status.batches_sent;
  out["descriptors_sent"] = status.descriptors_sent;
  out["bytes_copied"] = status.bytes_copied;
  nb::list places;
  for (const PlaceStatus& place : status.places) {
    nb::dict entry;
    entry["rank"] = place.rank;
    entry["attached"] = place.attached;
    entry["pid"] = place.pid;
    places.append(entry);
  }
  out["places"] = places;
  return out;
}

}  // namespace

void register_delivery(nb::module_& m) {
  m.def(
      "job_hash",
      [](const std::string& json) { return IdentityOf(ValueOrThrow(ParseJob(json))).hash; },
      nb::arg("job_json"), "Of everything that the ranks of a job must agree in.");
  nb::class_<AttachedClient>(m, "Client", "A rank's end of its node's host. Thread-safe.")
      .def(nb::new_(&MakeClient), nb::arg("socket_path"), nb::arg("job_json"), nb::arg("rank"),
           nb::arg("world"), nb::arg("launch_id"), nb::arg("state_json") = "",
           nb::arg("fork") = false, nb::arg("begin_step") = nb::none(),
           nb::arg("timeout_seconds") = 60.0)
      .def(
          "next",
          [](AttachedClient& client, double timeout_seconds) -> std::optional<BatchPointer> {
            BatchPointer batch = Released([&] { return client.Next(In(timeout_seconds)); });
            if (!batch) return std::nullopt;
            return batch;
          },
          nb::arg("timeout_seconds"),
          "The next batch; None at the end; DeadlineExceededError after the time.")
      .def(
          "state_json",
          [](AttachedClient& client, std::optional<std::uint64_t> step) {
            return Released(
                [&] { return client.client().StateJson(step, Clock::now() + kAnswerTime); });
          },
          nb::arg("step") = nb::none())
      .def(
          "skip",
          [](AttachedClient& client, std::uint64_t steps) {
            Decision decision;
            decision.kind = Decision::Kind::kSkip;
            decision.steps = steps;
            return client.Decide(decision);
          },
          nb::arg("steps"))
      .def(
          "edit_mixture",
          [](AttachedClient& client, const std::string& mixture_json, std::uint64_t at_step) {
            Decision decision;
            decision.mixture_json = mixture_json;
            decision.step = at_step;
            return client.Decide(decision);
          },
          nb::arg("mixture_json"), nb::arg("at_step") = 0)
      .def("commit_journal",
           [](AttachedClient& client) {
             Status status;
             {
               nb::gil_scoped_release release;
               status = client.client().CommitJournal(Clock::now() + kAnswerTime);
             }
             ThrowIfError(status);
           })
      .def(
          "stop", [](AttachedClient& client) { client.client().Close(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "status_json",
          [](AttachedClient& client) {
            return Released([&] { return client.client().StatusJson(Clock::now() + kAnswerTime); });
          })
      .def("description_json",
           [](AttachedClient& client) { return client.client().welcome().description_json; })
      .def_prop_ro("host_pid",
                   [](AttachedClient& client) { return client.client().welcome().host_pid; })
      .def("counters", [](AttachedClient& client) {
        const ClientCounters counters = client.client().counters();
        nb::dict out;
        out["batches"] = counters.batches;
        out["mappings"] = counters.mappings;
        out["receives"] = counters.receives;
        out["polls"] = counters.polls;
        out["sends"] = counters.sends;
        out["bytes_copied"] = counters.bytes_copied;
        return out;
      });

  nb::class_<Server>(m, "HostServer", "Serves a job's stream to the ranks of this node.")
      .def(nb::new_([](const std::string& job_json, const std::string& folder,
                       const std::string& log_path, std::uint32_t first_rank, std::uint32_t ranks,
                       bool journal) {
             return Released([&]() -> Result<std::unique_ptr<Server>> {
               WS_ASSIGN_OR_RETURN(const JobSpec job, ParseJob(job_json));
               NodeHostOptions options;
               options.folder = folder;
               options.log_path = log_path;
               options.first_rank = first_rank;
               options.ranks = ranks;
               options.journal = journal;
               return ServeNode(job, options);
             });
           }),
           nb::arg("job_json"), nb::arg("folder"), nb::arg("log_path") = "",
           nb::arg("first_rank") = 0, nb::arg("ranks") = 1, nb::arg("journal") = true)
      .def_static(
          "constant",
          [](const std::string& folder, std::uint64_t steps, std::uint32_t ranks,
             std::uint64_t bucket_bytes, std::uint32_t slabs) {
            return Released(
                [&] { return ServeConstant(folder, {steps, ranks, bucket_bytes, slabs}); });
          },
          nb::arg("folder"), nb::arg("steps"), nb::arg("ranks"), nb::arg("bucket_bytes"),
          nb::arg("slabs") = 4,
          "A server of steps that nobody writes: what is measured on it is the delivery alone.")
      .def("status", &ServerStatusOf)
      .def_prop_ro("socket_path", &Server::socket_path)
      .def("stop", &Server::Stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace widestream::python
