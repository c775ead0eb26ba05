// Python face of engine/convert: class TokenizeJob.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.h"
#include "bindings/text.h"
#include "engine/convert/tokenize.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

// An encoder written in Python: a callable list[bytes] -> (ids uint32 [T], offsets int64 [N + 1]).
class PythonEncoder final : public TextEncoder {
 public:
  PythonEncoder(nb::object encode, std::uint32_t vocabulary_size, std::string digest)
      : encode_(std::move(encode)), vocabulary_size_(vocabulary_size), digest_(std::move(digest)) {}
  // The last owner may be any thread.
  ~PythonEncoder() override {
    const nb::gil_scoped_acquire acquire;
    encode_.reset();
  }

  Status Encode(std::span<const std::string_view> texts, IdBuffer<std::uint32_t>* ids,
                std::vector<std::uint64_t>* ends) const override {
    const nb::gil_scoped_acquire acquire;
    try {
      nb::list list;
      for (const std::string_view text : texts) list.append(nb::bytes(text.data(), text.size()));
      using Ids = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
      using Offsets = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
      const nb::object pair = encode_(list);
      const auto found = nb::cast<Ids>(pair[0]);
      const auto offsets = nb::cast<Offsets>(pair[1]);
      if (offsets.size() != texts.size() + 1 ||
          offsets.data()[texts.size()] != static_cast<std::int64_t>(found.size())) {
        return Status::Internal("an encoder gave offsets that do not fit its texts");
      }
      const std::uint64_t before = ids->size();
      ids->Reserve(found.size());
      std::copy(found.data(), found.data() + found.size(), ids->data() + before);
      ids->SetSize(before + found.size());
      for (std::size_t i = 1; i < offsets.size(); ++i) {
        ends->push_back(before + static_cast<std::uint64_t>(offsets.data()[i]));
      }
      return {};
    } catch (const nb::python_error& error) {
      return Status::InvalidArgument(error.what());
    } catch (const nb::cast_error&) {
      return Status::Internal("an encoder gave something else than two arrays");
    }
  }
  std::uint32_t VocabularySize() const override { return vocabulary_size_; }
  std::string Digest() const override { return digest_; }

 private:
  nb::object encode_;
  const std::uint32_t vocabulary_size_;
  const std::string digest_;
};

// A TokenizeJob and what stops it.
class PythonTokenizeJob {
 public:
  PythonTokenizeJob(std::shared_ptr<const TextEncoder> encoder, TokenizeOptions options) {
    Result<std::unique_ptr<TokenizeJob>> job = Status::Internal("not made");
    {
      const nb::gil_scoped_release release;
      job = TokenizeJob::Make(LocalFileSystem(), std::move(encoder), std::move(options));
    }
    job_ = ValueOrThrow(std::move(job));
  }

  void Run() {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = job_->Run(cancellation_.token());
    }
    ThrowIfError(status);
  }
  void Cancel() { cancellation_.Cancel("the work was interrupted"); }
  nb::dict Progress() const {
    const TokenizeProgress progress = job_->Progress();
    nb::dict out;
    out["documents"] = progress.all.documents;
    out["empty"] = progress.all.empty;
    out["bad"] = progress.all.bad;
    out["tokens"] = progress.all.tokens;
    out["text_bytes"] = progress.all.text_bytes;
    out["resumed_documents"] = progress.resumed.documents;
    out["resumed_text_bytes"] = progress.resumed.text_bytes;
    out["shards"] = progress.shards;
    out["shards_done"] = progress.shards_done;
    out["input_bytes"] = progress.input_bytes;
    out["input_bytes_done"] = progress.input_bytes_done;
    out["assembling"] = progress.assembling;
    return out;
  }
  std::uint32_t id_bytes() const { return job_->id_bytes(); }
  nb::object FirstBadRecord() const { return ToText(job_->FirstBadRecord()); }

 private:
  std::unique_ptr<TokenizeJob> job_;
  CancellationSource cancellation_;
};

std::unique_ptr<PythonTokenizeJob> MakeJob(const nb::list& paths, nb::handle output,
                                           nb::handle encoder, const std::string& format,
                                           const std::string& text,
                                           const std::vector<std::uint32_t>& append,
                                           bool skip_bad_records, std::uint64_t record_bytes,
                                           std::uint32_t threads, bool overwrite, bool restart,
                                           std::uint64_t checkpoint_bytes) {
  TokenizeOptions options;
  options.input.name = "input";
  for (const nb::handle path : paths) options.input.paths.push_back(PathBytes(path));
  options.input.format = format;
  options.input.text = text;
  options.output = PathBytes(output);
  options.append = append;
  options.skip_bad_records = skip_bad_records;
  options.record_bytes = record_bytes;
  options.threads = threads;
  options.overwrite = overwrite;
  options.restart = restart;
  options.checkpoint_bytes = checkpoint_bytes;
  std::shared_ptr<const TextEncoder> made;
  if (nb::isinstance<Tokenizer>(encoder)) {
    made = MakeTextEncoder(nb::cast<std::shared_ptr<const Tokenizer>>(encoder));
  } else {
    const auto parts = nb::cast<nb::tuple>(encoder);
    if (parts.size() != 3) throw nb::type_error("encoder: (callable, vocabulary size, digest)");
    made = std::make_shared<PythonEncoder>(nb::object(parts[0]), nb::cast<std::uint32_t>(parts[1]),
                                           nb::cast<std::string>(parts[2]));
  }
  return std::make_unique<PythonTokenizeJob>(std::move(made), std::move(options));
}

}  // namespace

void register_convert(nb::module_& module) {
  nb::class_<PythonTokenizeJob>(
      module, "TokenizeJob",
      "Files of records to a Megatron .bin and .idx; widestream.tokenizer.tokenize_files is its "
      "public face. `encoder`: a Tokenizer, or (callable list[bytes] -> (uint32 [T], int64 [N + "
      "1]), vocabulary size, digest).")
      .def(nb::new_(&MakeJob), nb::arg("paths"), nb::arg("output"), nb::arg("encoder"),
           nb::kw_only(), nb::arg("format") = "", nb::arg("text") = "text",
           nb::arg("append") = std::vector<std::uint32_t>(), nb::arg("skip_bad_records") = false,
           nb::arg("record_bytes") = 32U << 20, nb::arg("threads") = 0,
           nb::arg("overwrite") = false, nb::arg("restart") = false,
           nb::arg("checkpoint_bytes") = 64U << 20)
      .def("run", &PythonTokenizeJob::Run, "Works until the output is there. Call once.")
      .def("cancel", &PythonTokenizeJob::Cancel,
           "Makes run raise CancelledError soon; from any thread.")
      .def("progress", &PythonTokenizeJob::Progress,
           "documents, empty, bad, tokens, text_bytes, resumed_documents, resumed_text_bytes, "
           "shards, shards_done, input_bytes, input_bytes_done, assembling. From any thread.",
           nb::sig("def progress(self) -> dict[str, typing.Any]"))
      .def_prop_ro("id_bytes", &PythonTokenizeJob::id_bytes, "2 (uint16) or 4 (int32).")
      .def_prop_ro("first_bad_record", &PythonTokenizeJob::FirstBadRecord,
                   "Why the first record that was left out is bad, or \"\".",
                   nb::sig("def first_bad_record(self) -> str"));
}

}  // namespace widestream::python
