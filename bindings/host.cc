// Host and the job spec for Python.
#include "engine/runtime/host.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/batch.h"
#include "bindings/errors.h"
#include "engine/construct/constructor.h"
#include "engine/formats/parquet.h"
#include "engine/job/spec.h"
#include "engine/plan/place_tree.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

// A host of this process for one rank: it builds the tensors of that rank's bucket only.
class EmbeddedHost {
 public:
  EmbeddedHost(std::unique_ptr<Host> host, Place place) : host_(std::move(host)), place_(place) {}
  EmbeddedHost(const EmbeddedHost&) = delete;
  EmbeddedHost& operator=(const EmbeddedHost&) = delete;
  ~EmbeddedHost() {
    // A forked child has no copy of the threads, so they cannot be joined there: left as they are.
    if (!SameProcess().ok())
      static_cast<void>(host_.release());  // NOLINT(bugprone-unused-return-value)
  }

  // Raises in a forked child, where no thread of the host runs.
  Host& host() {
    ThrowIfError(SameProcess());
    return *host_;
  }
  void Stop() {
    if (SameProcess().ok()) host_->Stop();
  }

  Result<BatchPointer> Next(std::chrono::steady_clock::time_point deadline) {
    WS_RETURN_IF_ERROR(SameProcess());
    WS_ASSIGN_OR_RETURN(const std::shared_ptr<const Step> step, host_->Next(deadline));
    if (!step) return BatchPointer();
    const Bucket& bucket = step->buckets.front();
    auto batch = std::make_shared<DeliveredBatch>();
    batch->step = step->number;
    batch->dp_rank = place_.dp;
    batch->supervised_tokens = step->plan->supervised_tokens;
    batch->real_tokens = step->plan->real_tokens;
    batch->digest = step->plan->digest;
    batch->weights = step->weights;
    batch->tokens_by_source = TokensBySource(*step->plan, step->weights.size());
    for (const RankPlan& rank : step->plan->ranks) batch->costs.push_back(rank.cost);
    BatchView view = SelectFor(bucket.view, place_);
    batch->size_bytes = view.size_bytes;
    batch->microbatches =
        std::make_shared<const std::vector<MicrobatchView>>(std::move(view.microbatches));
    batch->memory = bucket.slab->memory().data();
    batch->owner = step;
    batch->plan = [step]() -> Result<std::shared_ptr<const StepPlan>> { return step->plan; };
    return BatchPointer(std::move(batch));
  }

 private:
  Status SameProcess() const {
    if (getpid() == process_) return Status::Ok();
    return Status::InvalidArgument(
        "this process was forked from process " + std::to_string(process_) +
        ", whose loader has threads that a fork does not copy; open a DataLoader in this process, "
        "or start it with spawn or forkserver");
  }

  std::unique_ptr<Host> host_;
  Place place_;
  pid_t process_ = getpid();
};

std::unique_ptr<EmbeddedHost> MakeHost(const std::string& job_json, std::uint32_t rank,
                                       bool held_out, bool fork, bool journal,
                                       const std::string& state_json) {
  const auto make = [&]() -> Result<std::unique_ptr<EmbeddedHost>> {
    WS_ASSIGN_OR_RETURN(JobSpec job, ParseJob(job_json));
    const MeshSpec mesh = held_out ? MeshSpec{} : job.mesh;
    WS_ASSIGN_OR_RETURN(const ClientPlaceTree places, ClientPlaceTree::Make(mesh));
    if (rank >= places.world()) {
      return Status::InvalidArgument("rank " + std::to_string(rank) + " is not in a mesh of " +
                                     std::to_string(places.world()) + " ranks");
    }
    HostOptions options;
    options.dp_ranks = {places.place(rank).dp};
    options.held_out = held_out;
    options.fork = fork;
    options.journal = journal;
    options.state_json = state_json;
    WS_ASSIGN_OR_RETURN(std::unique_ptr<Host> host, Host::Make(std::move(job), std::move(options)));
    return std::make_unique<EmbeddedHost>(std::move(host), places.place(rank));
  };
  Result<std::unique_ptr<EmbeddedHost>> host = Status::Internal("not made");
  {
    nb::gil_scoped_release release;
    host = make();
  }
  return ValueOrThrow(std::move(host));
}

std::optional<BatchPointer> Next(EmbeddedHost& host, double timeout_seconds) {
  Result<BatchPointer> batch = BatchPointer();
  {
    nb::gil_scoped_release release;
    batch = host.Next(std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                          std::chrono::duration<double>(timeout_seconds)));
  }
  BatchPointer value = ValueOrThrow(std::move(batch));
  if (!value) return std::nullopt;
  return value;
}

std::uint64_t Decide(EmbeddedHost& host, Decision decision) {
  Host& engine = host.host();
  Result<std::uint64_t> step = std::uint64_t{0};
  {
    nb::gil_scoped_release release;
    step = engine.Decide(std::move(decision));
  }
  return ValueOrThrow(std::move(step));
}

}  // namespace

void register_host(nb::module_& m) {
  m.def(
      "check_job", [](const std::string& json) { return ToJson(ValueOrThrow(ParseJob(json))); },
      nb::arg("job_json"), "Parses and validates a resolved job; returns its canonical JSON.");
  m.def(
      "set_arrow_glue", [](const std::string& path) { ThrowIfError(SetArrowGluePath(path)); },
      nb::arg("path"), "Where the Parquet glue library is; it is loaded when a source needs it.");

  nb::class_<EmbeddedHost>(m, "Host", "The data plane on threads of this process, for one rank.")
      .def(nb::new_(&MakeHost), nb::arg("job_json"), nb::arg("rank") = 0,
           nb::arg("held_out") = false, nb::arg("fork") = false, nb::arg("journal") = true,
           nb::arg("state_json") = "")
      .def("next", &Next, nb::arg("timeout_seconds"),
           "The next batch; None at the end; DeadlineExceededError after the time.")
      .def(
          "state_json",
          [](EmbeddedHost& host, std::optional<std::uint64_t> step) {
            return ValueOrThrow(host.host().StateJson(step));
          },
          nb::arg("step") = nb::none())
      .def(
          "skip",
          [](EmbeddedHost& host, std::uint64_t steps) {
            Decision decision;
            decision.kind = Decision::Kind::kSkip;
            decision.steps = steps;
            return Decide(host, std::move(decision));
          },
          nb::arg("steps"))
      .def(
          "edit_mixture",
          [](EmbeddedHost& host, const std::string& mixture_json, std::uint64_t at_step) {
            Decision decision;
            decision.mixture_json = mixture_json;
            decision.step = at_step;
            return Decide(host, std::move(decision));
          },
          nb::arg("mixture_json"), nb::arg("at_step") = 0)
      .def("commit_journal",
           [](EmbeddedHost& host) {
             Status status;
             Host& engine = host.host();
             {
               nb::gil_scoped_release release;
               status = engine.CommitJournal();
             }
             ThrowIfError(status);
           })
      .def("stop", &EmbeddedHost::Stop, nb::call_guard<nb::gil_scoped_release>())
      .def("status_json", [](EmbeddedHost& host) { return host.host().StatusJson(); })
      .def("description_json", [](EmbeddedHost& host) { return host.host().DescriptionJson(); });
}

}  // namespace widestream::python
