// Reading and repairing journals, for `explain` and `journal`.
#include "engine/plan/journal.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bindings/columns.h"
#include "bindings/errors.h"
#include "bindings/text.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

nb::object TearOf(const std::optional<JournalTear>& tear) {
  if (!tear) return nb::none();
  nb::dict out;
  out["offset_bytes"] = tear->offset_bytes;
  out["lost_bytes"] = tear->lost_bytes;
  out["records_follow"] = tear->records_follow;
  out["reason"] = ToText(tear->reason);
  return out;
}

nb::dict DecisionOf(const Decision& decision) {
  nb::dict out;
  out["step"] = decision.step;
  switch (decision.kind) {
    case Decision::Kind::kEdit:
      out["kind"] = "edit";
      out["mixture_json"] = ToText(decision.mixture_json);
      break;
    case Decision::Kind::kSkip:
      out["kind"] = "skip";
      out["steps"] = decision.steps;
      break;
    case Decision::Kind::kQuarantine:
      out["kind"] = "quarantine";
      out["source"] = decision.source;
      out["epoch"] = decision.epoch;
      out["position"] = decision.position;
      out["reason"] = ToText(decision.reason);
      break;
  }
  return out;
}

std::unique_ptr<JournalReader> OpenJournal(nb::handle path) {
  const std::string file = PathBytes(path);
  Result<std::unique_ptr<JournalReader>> reader = Status::Internal("not opened");
  {
    nb::gil_scoped_release release;
    reader = JournalReader::Open(LocalFileSystem(), file);
  }
  return ValueOrThrow(std::move(reader));
}

StepPlan ReadPlan(const JournalReader& reader, std::uint64_t step) {
  Result<StepPlan> plan = Status::Internal("not read");
  {
    nb::gil_scoped_release release;
    plan = reader.ReadStep(step);
  }
  return ValueOrThrow(std::move(plan));
}

nb::dict ReadStep(const JournalReader& reader, std::uint64_t step) {
  const StepPlan plan = ReadPlan(reader, step);
  nb::dict out;
  out["step"] = plan.step;
  out["skipped"] = plan.skipped;
  out["real_tokens"] = plan.real_tokens;
  out["supervised_tokens"] = plan.supervised_tokens;
  out["digest"] = ToText(plan.digest);
  out["pieces"] = PieceColumns(plan.pieces);
  out["layout"] = LayoutOf(plan);
  return out;
}

nb::dict ReadManifest(const JournalReader& reader, std::uint32_t source, std::uint32_t epoch) {
  const JournalManifest manifest = ValueOrThrow(reader.ReadManifest(source, epoch));
  nb::dict out;
  out["source"] = manifest.source;
  out["epoch"] = manifest.epoch;
  out["hash"] = ToText(manifest.hash);
  out["bytes"] = nb::bytes(manifest.bytes.data(), manifest.bytes.size());
  return out;
}

nb::list Steps(const JournalReader& reader) {
  nb::list out;
  for (const JournalContents::Step& step : reader.contents().steps)
    out.append(nb::make_tuple(step.step, ToText(step.digest.ToHex())));
  return out;
}

nb::list Manifests(const JournalReader& reader) {
  nb::list out;
  for (const JournalContents::Manifest& manifest : reader.contents().manifests)
    out.append(nb::make_tuple(manifest.source, manifest.epoch, ToText(manifest.hash)));
  return out;
}

template <typename Texts>
nb::list ToTexts(const Texts& texts) {
  nb::list out;
  for (const std::string& text : texts) out.append(ToText(text));
  return out;
}

nb::list Decisions(const JournalReader& reader) {
  nb::list out;
  for (const Decision& decision : reader.contents().decisions) out.append(DecisionOf(decision));
  return out;
}

nb::object Repair(nb::handle path, bool even_if_records_follow) {
  const std::string file = PathBytes(path);
  Result<std::optional<JournalTear>> cut = Status::Internal("not repaired");
  {
    nb::gil_scoped_release release;
    cut = RepairJournal(LocalFileSystem(), file, even_if_records_follow);
  }
  return TearOf(ValueOrThrow(std::move(cut)));
}

}  // namespace

void register_journal(nanobind::module_& module) {
  nb::class_<JournalReader>(
      module, "JournalReader",
      "A journal as it is on disk; a torn tail is described, not an error. Immutable.")
      .def(nb::new_(&OpenJournal), nb::arg("path"),
           "Raises NotFoundError, or DataCorruptionError if not even the first record is whole.")
      .def_prop_ro(
          "stream_hash",
          [](const JournalReader& r) { return ToText(r.contents().identity.stream_hash); },
          nb::sig("def stream_hash(self) -> str"))
      .def_prop_ro(
          "sources", [](const JournalReader& r) { return ToTexts(r.contents().identity.sources); },
          nb::sig("def sources(self) -> list[str]"))
      .def_prop_ro("steps", &Steps, "(step, digest), ascending.",
                   nb::sig("def steps(self) -> list[tuple[int, str]]"))
      .def_prop_ro("decisions", &Decisions,
                   nb::sig("def decisions(self) -> list[dict[str, typing.Any]]"))
      .def_prop_ro("manifests", &Manifests, "(source, epoch, hash), as recorded.",
                   nb::sig("def manifests(self) -> list[tuple[int, int, str]]"))
      .def_prop_ro(
          "notes", [](const JournalReader& r) { return ToTexts(r.contents().notes); },
          nb::sig("def notes(self) -> list[str]"))
      .def_prop_ro("valid_bytes", [](const JournalReader& r) { return r.contents().valid_bytes; })
      .def_prop_ro(
          "tear", [](const JournalReader& r) { return TearOf(r.contents().tear); },
          "None, or {offset_bytes, lost_bytes, records_follow, reason}.",
          nb::sig("def tear(self) -> dict[str, typing.Any] | None"))
      .def("read_step", &ReadStep, nb::arg("step"),
           "{step, skipped, real_tokens, supervised_tokens, digest, pieces, layout}. NotFoundError "
           "names the steps that there are.",
           nb::sig("def read_step(self, step: int) -> dict[str, typing.Any]"))
      .def(
          "piece_lengths",
          [](const JournalReader& r, std::uint64_t step) {
            nb::list out;
            for (const Piece& piece : ReadPlan(r, step).pieces) out.append(piece.length);
            return out;
          },
          nb::arg("step"), "Tokens of each piece of a step.",
          nb::sig("def piece_lengths(self, step: int) -> list[int]"))
      .def("read_manifest", &ReadManifest, nb::arg("source"), nb::arg("epoch"),
           "{source, epoch, hash, bytes}.",
           nb::sig("def read_manifest(self, source: int, epoch: int) -> dict[str, typing.Any]"));
  module.def(
      "repair_journal", &Repair, nb::arg("path"), nb::arg("even_if_records_follow") = false,
      "Cuts a torn tail; returns what was cut (as JournalReader.tear) or None. Raises "
      "DataCorruptionError if whole records follow the damage.",
      nb::sig("def repair_journal(path: str | os.PathLike[str], even_if_records_follow: bool = "
              "False) -> dict[str, typing.Any] | None"));
}

}  // namespace widestream::python
