// What files hold, for `inspect`: shards of a path, units and schema of a shard, a few records.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.h"
#include "bindings/text.h"
#include "engine/formats/shard_reader.h"
#include "engine/source/manifest.h"
#include "engine/storage/file_system.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

// Records read at once, so that a sample of long ones stays near its bound in bytes.
constexpr std::uint64_t kReadRecords = 16;

nb::dict ListShards(nb::handle path, const std::string& format) {
  SourceSpec source;
  source.name = "inspect";
  source.paths = {PathBytes(path)};
  source.format = format;
  Result<Manifest> manifest = Status::Internal("not listed");
  {
    nb::gil_scoped_release release;
    manifest = BuildManifest(*LocalFileSystem(), source);
  }
  const Manifest value = ValueOrThrow(std::move(manifest));
  nb::list shards;
  for (const ShardEntry& shard : value.shards) {
    nb::dict entry;
    entry["path"] = ToPath(shard.path);
    entry["size_bytes"] = shard.size_bytes;
    entry["fingerprint"] = shard.fingerprint;
    shards.append(entry);
  }
  nb::dict out;
  out["format"] = FormatName(value.format);
  out["hash"] = value.hash;
  out["shards"] = shards;
  return out;
}

// An open shard; one thread at a time.
class InspectedShard {
 public:
  static std::unique_ptr<InspectedShard> Open(nb::handle path, const std::string& format,
                                              const std::string& text, std::uint64_t record_bytes) {
    const std::string file = PathBytes(path);
    Result<std::shared_ptr<ShardReader>> reader = Status::Internal("not opened");
    {
      nb::gil_scoped_release release;
      const Result<Format> known = FormatFromName(format, file);
      ReadOptions options;
      options.text = text;
      options.record_bytes = record_bytes;
      if (known.ok()) {
        reader = OpenShard(LocalFileSystem(), *known, file, options);
      } else {
        reader = known.status();
      }
    }
    return std::unique_ptr<InspectedShard>(new InspectedShard(ValueOrThrow(std::move(reader))));
  }

  nb::list Schema() const {
    nb::list out;
    for (const std::string& line : reader_->Schema()) out.append(ToText(line));
    return out;
  }

  // Of the records that Read gives: 0 if they are text.
  std::uint32_t IdBytes() const { return id_bytes_; }

  nb::list Units() const {
    nb::list out;
    for (const ShardUnit& unit : reader_->units()) {
      nb::object records = unit.records ? nb::cast(*unit.records) : nb::none();
      out.append(nb::make_tuple(records, unit.bytes, unit.first_record));
    }
    return out;
  }

  // The first records of a unit: (text bytes, offset, "" or why it is bad).
  nb::list Read(std::uint64_t unit, std::uint64_t records, std::uint64_t bytes) {
    if (unit >= reader_->units().size()) {
      ThrowIfError(Status::InvalidArgument("the shard has no such unit"));
    }
    nb::list out;
    std::unique_ptr<UnitReader> reader;
    RecordBlock block;
    std::uint64_t read_bytes = 0;
    bool end = false;
    while (!end && out.size() < records && read_bytes < bytes) {
      block.Clear();
      Status status;
      {
        nb::gil_scoped_release release;
        if (!reader) {
          Result<std::unique_ptr<UnitReader>> opened = reader_->OpenUnit(unit, 0);
          status = opened.status();
          if (status.ok()) reader = std::move(opened).value();
        }
        const std::uint64_t left = records - out.size();
        if (status.ok()) {
          status = reader->Next(std::min(left, kReadRecords), bytes - read_bytes, &block);
        }
      }
      ThrowIfError(status);
      id_bytes_ = block.id_bytes;
      end = block.end_of_unit || block.records.empty();
      for (const RawRecord& record : block.records) {
        const nb::object why = record.error < 0
                                   ? ToText("")
                                   : ToText(block.errors[static_cast<std::size_t>(record.error)]);
        read_bytes += record.text.size();
        out.append(
            nb::make_tuple(nb::bytes(record.text.data(), record.text.size()), record.offset, why));
      }
    }
    return out;
  }

 private:
  explicit InspectedShard(std::shared_ptr<ShardReader> reader) : reader_(std::move(reader)) {}
  std::shared_ptr<ShardReader> reader_;
  std::uint32_t id_bytes_ = 0;
};

}  // namespace

void register_inspect(nanobind::module_& module) {
  module.def(
      "list_shards", &ListShards, nb::arg("path"), nb::arg("format") = "",
      "The files of a file, folder or glob as one source would see them: {format, hash, shards: "
      "[{path, size_bytes, fingerprint}]}.",
      nb::sig("def list_shards(path: str | os.PathLike[str], format: str = '') -> dict[str, "
              "typing.Any]"));
  nb::class_<InspectedShard>(module, "InspectedShard",
                             "An open shard: what its metadata says, and first records of its "
                             "units. Not thread-safe.")
      .def(nb::new_(&InspectedShard::Open), nb::arg("path"), nb::kw_only(), nb::arg("format") = "",
           nb::arg("text") = "text", nb::arg("record_bytes") = 32U << 20)
      .def("schema", &InspectedShard::Schema, "Lines \"name: type\"; empty where there is none.",
           nb::sig("def schema(self) -> list[str]"))
      .def_prop_ro("id_bytes", &InspectedShard::IdBytes,
                   "Bytes of an id where the records last read are tokenized already, else 0.")
      .def("units", &InspectedShard::Units, "(records or None, bytes, first record) of each unit.",
           nb::sig("def units(self) -> list[tuple[int | None, int, int]]"))
      .def("read", &InspectedShard::Read, nb::arg("unit"), nb::arg("records"), nb::arg("bytes"),
           "The first records of a unit, at most about `bytes`: (text, offset, why it is bad or "
           "\"\").",
           nb::sig("def read(self, unit: int, records: int, bytes: int) -> list[tuple[bytes, int, "
                   "str]]"));
}

}  // namespace widestream::python
