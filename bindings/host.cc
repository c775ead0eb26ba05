// Host, Batch and the job spec for Python.
#include "engine/runtime/host.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/columns.h"
#include "bindings/errors.h"
#include "engine/formats/parquet.h"
#include "engine/job/spec.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

using BatchPointer = std::shared_ptr<const Batch>;

nb::dlpack::dtype TypeOf(DataType type) {
  switch (type) {
    case DataType::kInt64:
      return nb::dtype<std::int64_t>();
    case DataType::kInt32:
      return nb::dtype<std::int32_t>();
    case DataType::kBool:
      return nb::dtype<bool>();
  }
  return nb::dtype<std::uint8_t>();
}

// A numpy view of a tensor; keeps the batch's memory leased for as long as it lives.
nb::object ToNumpy(const BatchPointer& batch, const TensorView& tensor) {
  auto* keep = new BatchPointer(batch);
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<BatchPointer*>(p); });
  std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
  std::byte* data = batch->slab->memory().data() + tensor.offset_bytes;
  return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr,
                                         TypeOf(tensor.type)));
}

nb::list Microbatches(const BatchPointer& batch) {
  nb::list out;
  for (const MicrobatchView& view : batch->view.microbatches) {
    nb::dict tensors;
    for (const TensorView& tensor : view.tensors)
      tensors[tensor.name.c_str()] = ToNumpy(batch, tensor);
    tensors["max_seqlen"] = view.max_seqlen;
    tensors["real_tokens"] = view.real_tokens;
    out.append(tensors);
  }
  return out;
}

std::unique_ptr<Host> MakeHost(const std::string& job_json, std::uint32_t rank, bool held_out,
                               bool fork, const std::string& state_json) {
  Result<std::unique_ptr<Host>> host = Status::Internal("not made");
  {
    nb::gil_scoped_release release;
    Result<JobSpec> job = ParseJob(job_json);
    if (job.ok()) {
      HostOptions options;
      options.rank = rank;
      options.held_out = held_out;
      options.fork = fork;
      options.state_json = state_json;
      host = Host::Make(std::move(job).value(), std::move(options));
    } else {
      host = job.status();
    }
  }
  return ValueOrThrow(std::move(host));
}

std::optional<BatchPointer> Next(Host& host, double timeout_seconds) {
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

nb::dict StatusOf(const Host& host) {
  const HostStatus status = host.status();
  nb::dict out;
  out["doing"] = status.doing;
  out["doing_seconds"] = status.doing_seconds;
  out["planned_steps"] = status.planned_steps;
  out["delivered_steps"] = status.delivered_steps;
  out["ready_batches"] = status.ready_batches;
  out["leased_batches"] = status.leased_batches;
  return out;
}

nb::list SourcesOf(const Host& host) {
  nb::list out;
  for (const SourceInfo& info : host.sources()) {
    nb::dict entry;
    entry["name"] = info.name;
    entry["format"] = info.format;
    entry["manifest"] = info.manifest_hash;
    entry["shards"] = nb::cast(info.shards);
    entry["records"] = nb::cast(info.records);
    out.append(entry);
  }
  return out;
}

std::uint64_t Decide(Host& host, Decision decision) {
  Result<std::uint64_t> step = std::uint64_t{0};
  {
    nb::gil_scoped_release release;
    step = host.Decide(std::move(decision));
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

  nb::class_<BatchPointer>(m, "Batch",
                           "One step of one rank. Its arrays share the engine's memory.")
      .def_prop_ro("step", [](const BatchPointer& b) { return b->view.step; })
      .def_prop_ro("rank", [](const BatchPointer& b) { return b->view.rank; })
      .def_prop_ro("ranks", [](const BatchPointer& b) { return b->view.plan->ranks.size(); })
      .def_prop_ro("supervised_tokens",
                   [](const BatchPointer& b) { return b->view.plan->supervised_tokens; })
      .def_prop_ro("real_tokens", [](const BatchPointer& b) { return b->view.plan->real_tokens; })
      .def_prop_ro("weights", [](const BatchPointer& b) { return b->weights; })
      .def_prop_ro("digest", [](const BatchPointer& b) { return b->view.plan->digest; })
      .def_prop_ro("size_bytes", [](const BatchPointer& b) { return b->view.size_bytes; })
      .def_prop_ro("costs",
                   [](const BatchPointer& b) {
                     std::vector<double> costs;
                     for (const RankPlan& rank : b->view.plan->ranks) costs.push_back(rank.cost);
                     return costs;
                   })
      .def("microbatches", &Microbatches)
      .def("pieces", [](const BatchPointer& b) { return PieceColumns(b->view.plan->pieces); })
      .def("layout", [](const BatchPointer& b) { return LayoutOf(*b->view.plan); });

  nb::class_<Host>(m, "Host", "The data plane on threads of this process.")
      .def(nb::new_(&MakeHost), nb::arg("job_json"), nb::arg("rank") = 0,
           nb::arg("held_out") = false, nb::arg("fork") = false, nb::arg("state_json") = "")
      .def("next", &Next, nb::arg("timeout_seconds"),
           "The next batch; None at the end; DeadlineExceededError after the time.")
      .def(
          "state_json",
          [](Host& host, std::optional<std::uint64_t> step) {
            return ValueOrThrow(host.StateJson(step));
          },
          nb::arg("step") = nb::none())
      .def(
          "skip",
          [](Host& host, std::uint64_t steps) {
            Decision decision;
            decision.kind = Decision::Kind::kSkip;
            decision.steps = steps;
            return Decide(host, std::move(decision));
          },
          nb::arg("steps"))
      .def(
          "edit_mixture",
          [](Host& host, const std::string& mixture_json, std::uint64_t at_step) {
            Decision decision;
            decision.mixture_json = mixture_json;
            decision.step = at_step;
            return Decide(host, std::move(decision));
          },
          nb::arg("mixture_json"), nb::arg("at_step") = 0)
      .def("commit_journal",
           [](Host& host) {
             Status status;
             {
               nb::gil_scoped_release release;
               status = host.CommitJournal();
             }
             ThrowIfError(status);
           })
      .def("stop", &Host::Stop, nb::call_guard<nb::gil_scoped_release>())
      .def("status", &StatusOf)
      .def("sources", &SourcesOf)
      .def_prop_ro("stream_hash", &Host::stream_hash)
      .def_prop_ro("append", &Host::append)
      .def_prop_ro("left_tokens", &Host::left_tokens)
      .def_prop_ro("vocabulary_size",
                   [](const Host& host) { return host.tokenizer().VocabularySize(); })
      .def_prop_ro("tokenizer_digest", [](const Host& host) { return host.tokenizer().Digest(); })
      .def(
          "decode",
          [](const Host& host, const nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig,
                                                 nb::device::cpu>& ids) {
            std::vector<std::uint32_t> narrow(ids.shape(0));
            for (std::size_t i = 0; i < narrow.size(); ++i)
              narrow[i] = static_cast<std::uint32_t>(ids.data()[i]);
            std::string bytes;
            ThrowIfError(host.tokenizer().Decode(narrow, &bytes));
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("ids"));
}

}  // namespace widestream::python
