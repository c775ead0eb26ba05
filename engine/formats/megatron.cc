#include "engine/formats/megatron.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/formats/arena.h"

namespace widestream {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kHeaderBytes = 34;
// Small enough to be permuted well, large enough that a shard has few of them.
constexpr std::uint64_t kUnitDocuments = 4096;
constexpr std::uint64_t kMaxUnits = 65'536;

template <typename T>
T LoadLittleEndian(const char* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return static_cast<T>(value);
}

// How ids are stored; the codes of Megatron's DType.
struct Stored {
  std::uint8_t code;
  const char* name;
  std::uint32_t bytes;
  std::uint32_t given_bytes;  // RecordBlock::id_bytes; 0 = no ids
};
constexpr Stored kStored[] = {{1, "uint8", 1, 2},   {2, "int8", 1, 2},  {3, "int16", 2, 2},
                              {4, "int32", 4, 4},   {5, "int64", 8, 4}, {6, "float64", 8, 0},
                              {7, "float32", 4, 0}, {8, "uint16", 2, 2}};

// What the header says, checked against the sizes of both files.
struct Index {
  std::shared_ptr<const RandomAccessFile> file;
  std::shared_ptr<const RandomAccessFile> data;
  Stored stored{};
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;

  std::uint64_t LengthsAt() const { return kHeaderBytes; }
  std::uint64_t PointersAt() const { return kHeaderBytes + 4 * sequences; }
  std::uint64_t BordersAt() const { return kHeaderBytes + 12 * sequences; }
};

Status Broken(const RandomAccessFile& file, std::uint64_t offset, const std::string& what) {
  return Status::DataCorruption(StrCat("'", file.path(), "', at byte ", offset, ": ", what,
                                       "; write the data set again from its source"));
}

// An array of the index, some entries of it in memory.
template <typename T>
class Window {
 public:
  Window(const RandomAccessFile& file, std::uint64_t begin, std::uint64_t count)
      : file_(file), begin_(begin), count_(count) {}

  std::uint64_t Offset(std::uint64_t i) const { return begin_ + i * sizeof(T); }

  Result<std::int64_t> Get(std::uint64_t i) {
    if (i < first_ || i - first_ >= bytes_.size() / sizeof(T)) {
      const std::uint64_t entries = std::min<std::uint64_t>(kEntries, count_ - i);
      bytes_.resize(entries * sizeof(T));
      const Status status = ReadExactly(file_, Offset(i), bytes_.size(), bytes_.data());
      if (!status.ok()) {
        bytes_.clear();
        return status;
      }
      first_ = i;
    }
    return static_cast<std::int64_t>(LoadLittleEndian<T>(bytes_.data() + (i - first_) * sizeof(T)));
  }

 private:
  static constexpr std::uint64_t kEntries = 2048;

  const RandomAccessFile& file_;
  const std::uint64_t begin_;
  const std::uint64_t count_;
  std::uint64_t first_ = 0;
  std::vector<char> bytes_;
};

// Widens or narrows `count` stored ids; false and the first that does not fit if there is one.
template <typename From, typename To>
bool Convert(const char* from, std::uint64_t count, char* to, std::uint64_t* at,
             std::int64_t* value) {
  for (std::uint64_t i = 0; i < count; ++i) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here, with its sign
    const auto id = static_cast<std::int64_t>(LoadLittleEndian<From>(from + i * sizeof(From)));
    if (id < 0 || id > static_cast<std::int64_t>(std::numeric_limits<To>::max())) {
      *at = i;
      *value = id;
      return false;
    }
    const To given = static_cast<To>(id);
    for (std::size_t byte = 0; byte < sizeof(To); ++byte) {
      to[i * sizeof(To) + byte] = static_cast<char>((given >> (8 * byte)) & 0xFF);
    }
  }
  return true;
}

class MegatronUnitReader final : public UnitReader {
 public:
  MegatronUnitReader(Index index, std::uint64_t record_bytes, std::uint64_t first,
                     std::uint64_t next, std::uint64_t end)
      : index_(std::move(index)),
        record_bytes_(record_bytes),
        first_(first),
        next_(next),
        end_(end),
        lengths_(*index_.file, index_.LengthsAt(), index_.sequences),
        pointers_(*index_.file, index_.PointersAt(), index_.sequences),
        borders_(*index_.file, index_.BordersAt(), index_.documents + 1) {}

  Status Next(std::uint64_t records, std::uint64_t bytes, RecordBlock* block) override {
    block->Clear();
    block->id_bytes = index_.stored.given_bytes;
    Arena arena(&block->owners);
    while (next_ < end_ && block->records.size() < std::max<std::uint64_t>(records, 1) &&
           (block->records.empty() || block->raw_bytes < bytes)) {
      WS_RETURN_IF_ERROR(Add(next_, &arena, block));
      ++next_;
    }
    block->next_offset = next_ - first_;
    block->end_of_unit = next_ >= end_;
    return {};
  }

 private:
  Status Add(std::uint64_t document, Arena* arena, RecordBlock* block) {
    WS_ASSIGN_OR_RETURN(const std::int64_t begin, borders_.Get(document));
    WS_ASSIGN_OR_RETURN(const std::int64_t end, borders_.Get(document + 1));
    if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > index_.sequences) {
      return Broken(*index_.file, borders_.Offset(document),
                    StrCat("document ", document, " is said to hold the sequences ", begin, " to ",
                           end, " of ", index_.sequences));
    }
    const auto first = static_cast<std::uint64_t>(begin);
    const auto last = static_cast<std::uint64_t>(end);
    std::uint64_t ids = 0;
    for (std::uint64_t i = first; i < last; ++i) {
      WS_ASSIGN_OR_RETURN(const std::uint64_t length, CheckedLength(i));
      // No overflow: a length is below 2^31, and there are fewer than 2^60 / 12 sequences.
      ids = std::min(ids + length, kTooMany);
    }
    RawRecord record;
    record.offset = document;
    std::string error;
    block->raw_bytes += ids * index_.stored.bytes;
    if (ids * index_.stored.bytes > record_bytes_) {
      error = StrCat("the document has ", ids, " ids of ", index_.stored.bytes,
                     " bytes, more than errors.record_bytes = ", record_bytes_);
    } else if (ids > 0) {
      WS_RETURN_IF_ERROR(Read(first, last, ids, arena, &record, &error));
    }
    if (!error.empty()) {
      block->errors.push_back(std::move(error));
      record.error = static_cast<std::int32_t>(block->errors.size() - 1);
    }
    block->records.push_back(record);
    return {};
  }

  // Ids of a sequence, which lie inside the .bin.
  Result<std::uint64_t> CheckedLength(std::uint64_t sequence) {
    WS_ASSIGN_OR_RETURN(const std::int64_t length, lengths_.Get(sequence));
    WS_ASSIGN_OR_RETURN(const std::int64_t pointer, pointers_.Get(sequence));
    const std::uint64_t size = index_.data->size_bytes();
    if (length < 0) {
      return Broken(*index_.file, lengths_.Offset(sequence),
                    StrCat("sequence ", sequence, " is said to have ", length, " ids"));
    }
    const std::uint64_t bytes = static_cast<std::uint64_t>(length) * index_.stored.bytes;
    if (pointer < 0 || static_cast<std::uint64_t>(pointer) > size ||
        bytes > size - static_cast<std::uint64_t>(pointer)) {
      return Broken(*index_.file, pointers_.Offset(sequence),
                    StrCat("sequence ", sequence, " is said to be ", bytes, " bytes at ", pointer,
                           ", but '", index_.data->path(), "' has ", size, " bytes"));
    }
    return static_cast<std::uint64_t>(length);
  }

  Status Read(std::uint64_t first, std::uint64_t last, std::uint64_t ids, Arena* arena,
              RawRecord* record, std::string* error) {
    const std::uint32_t stored = index_.stored.bytes;
    const bool as_is = index_.stored.code == 8 || index_.stored.code == 4;
    char* const given = arena->Allocate(ids * index_.stored.given_bytes);
    char* raw = given;
    if (!as_is) {
      scratch_.resize(ids * stored);
      raw = scratch_.data();
    }
    // Sequences that lie one after the other, as they nearly always do, are one read.
    char* out = raw;
    std::uint64_t run_begin = 0;
    std::uint64_t run_bytes = 0;
    for (std::uint64_t i = first; i < last; ++i) {
      WS_ASSIGN_OR_RETURN(const std::int64_t length, lengths_.Get(i));
      WS_ASSIGN_OR_RETURN(const std::int64_t pointer, pointers_.Get(i));
      const auto at = static_cast<std::uint64_t>(pointer);
      // A file that changed while it is read must not write beyond the buffer.
      const std::uint64_t left = ids * stored - static_cast<std::uint64_t>(out - raw) - run_bytes;
      const std::uint64_t bytes =
          length < 0 ? left + 1 : static_cast<std::uint64_t>(length) * stored;
      if (bytes > left) {
        return Broken(*index_.file, lengths_.Offset(i), "the index changed while it was read");
      }
      if (run_bytes > 0 && at != run_begin + run_bytes) {
        WS_RETURN_IF_ERROR(ReadExactly(*index_.data, run_begin, run_bytes, out));
        out += run_bytes;
        run_bytes = 0;
      }
      if (run_bytes == 0) run_begin = at;
      run_bytes += bytes;
    }
    if (run_bytes > 0) {
      WS_RETURN_IF_ERROR(ReadExactly(*index_.data, run_begin, run_bytes, out));
    }
    std::uint64_t place = 0;
    std::int64_t value = 0;
    if (!as_is && !ConvertIds(raw, ids, given, &place, &value)) {
      *error =
          StrCat("id number ", place, " of the document is ", value, ", which is no id of a token");
      return {};
    }
    record->text = {given, ids * index_.stored.given_bytes};
    return {};
  }

  bool ConvertIds(const char* raw, std::uint64_t ids, char* given, std::uint64_t* place,
                  std::int64_t* value) const {
    switch (index_.stored.code) {
      case 1:
        return Convert<std::uint8_t, std::uint16_t>(raw, ids, given, place, value);
      case 2:
        return Convert<std::int8_t, std::uint16_t>(raw, ids, given, place, value);
      case 3:
        return Convert<std::int16_t, std::uint16_t>(raw, ids, given, place, value);
      default:
        return Convert<std::int64_t, std::uint32_t>(raw, ids, given, place, value);
    }
  }

  static constexpr std::uint64_t kTooMany = 1ULL << 60;

  const Index index_;
  const std::uint64_t record_bytes_;
  const std::uint64_t first_;  // document of the unit
  std::uint64_t next_;
  const std::uint64_t end_;
  Window<std::int32_t> lengths_;
  Window<std::int64_t> pointers_;
  Window<std::int64_t> borders_;
  std::vector<char> scratch_;  // ids as stored, where they are not given so
};

class MegatronShardReader final : public ShardReader {
 public:
  MegatronShardReader(Index index, std::uint64_t record_bytes)
      : index_(std::move(index)), record_bytes_(record_bytes) {
    const std::uint64_t documents = index_.documents;
    unit_documents_ = std::max(kUnitDocuments, (documents + kMaxUnits - 1) / kMaxUnits);
    for (std::uint64_t first = 0; first < documents; first += unit_documents_) {
      ShardUnit unit;
      // Its share by number: exact bytes would need a look at every border.
      const std::uint64_t records = std::min(unit_documents_, documents - first);
      unit.records = records;
      unit.bytes = static_cast<std::uint64_t>(
          static_cast<unsigned __int128>(index_.data->size_bytes()) * records / documents);
      unit.first_record = first;
      units_.push_back(unit);
    }
  }

  const std::vector<ShardUnit>& units() const override { return units_; }

  Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit, std::uint64_t offset) override {
    const std::uint64_t records = unit < units_.size() ? units_[unit].records.value_or(0) : 0;
    if (unit >= units_.size() || offset > records) {
      return Status::InvalidArgument(StrCat("'", index_.file->path(), "': there is no document ",
                                            offset, " in unit ", unit, "; it has ", units_.size(),
                                            " units"));
    }
    const std::uint64_t first = units_[unit].first_record;
    return std::unique_ptr<UnitReader>(std::make_unique<MegatronUnitReader>(
        index_, record_bytes_, first, first + offset, first + records));
  }

  std::vector<std::string> Schema() const override {
    return {StrCat("ids: ", index_.stored.name), StrCat("sequences: ", index_.sequences)};
  }

 private:
  const Index index_;
  const std::uint64_t record_bytes_;
  std::uint64_t unit_documents_ = 0;
  std::vector<ShardUnit> units_;
};

Status CheckSize(const Index& index, std::uint64_t borders) {
  const std::uint64_t size = index.file->size_bytes();
  const std::uint64_t body = size - kHeaderBytes;
  if (index.sequences > body / 12 || borders > body / 8 || borders == 0) {
    return Broken(
        *index.file, 18,
        StrCat("the header says ", index.sequences, " sequences and ", borders,
               " borders of documents, for which a file of ", size, " bytes has no room"));
  }
  const std::uint64_t expected = kHeaderBytes + 12 * index.sequences + 8 * borders;
  if (index.sequences > 0 && size == expected + index.sequences) {
    return Status::InvalidArgument(
        StrCat("'", index.file->path(), "', at byte ", expected, ": the index holds a mode for ",
               "each sequence: it is a multimodal data set, and only text can be read"));
  }
  if (size != expected) {
    return Broken(*index.file, std::min(size, expected),
                  StrCat("an index of ", index.sequences, " sequences and ", borders,
                         " borders of documents has ", expected, " bytes; the file has ", size));
  }
  return {};
}

Result<Index> OpenIndex(FileSystem& fs, const std::string& path) {
  Index index;
  WS_ASSIGN_OR_RETURN(index.file, fs.Open(MegatronIndexPath(path)));
  const RandomAccessFile& file = *index.file;
  char header[kHeaderBytes] = {};
  const auto present =
      static_cast<std::size_t>(std::min<std::uint64_t>(kHeaderBytes, file.size_bytes()));
  WS_RETURN_IF_ERROR(ReadExactly(file, 0, present, header));
  if (present < kHeaderBytes || std::string_view(header, kMagic.size()) != kMagic) {
    return Status::InvalidArgument(
        StrCat("'", file.path(),
               "', at byte 0: is no Megatron index (expected MMIDIDX and a "
               "header of ",
               kHeaderBytes, " bytes; the file has ", file.size_bytes(), ")"));
  }
  const auto version = LoadLittleEndian<std::uint64_t>(header + 9);
  if (version != 1) {
    return Status::InvalidArgument(StrCat("'", file.path(), "', at byte 9: is version ", version,
                                          " of the Megatron index; 1 can be read"));
  }
  const auto code = static_cast<std::uint8_t>(header[17]);
  const auto* const stored =
      std::find_if(std::begin(kStored), std::end(kStored),
                   [code](const Stored& known) { return known.code == code; });
  if (stored == std::end(kStored)) {
    return Broken(file, 17,
                  StrCat("the type of an id has the code ", int{code}, ", expected 1 to 8"));
  }
  if (stored->given_bytes == 0) {
    return Status::InvalidArgument(StrCat("'", file.path(), "', at byte 17: it holds ",
                                          stored->name, " numbers, which are no ids of tokens"));
  }
  index.stored = *stored;
  index.sequences = LoadLittleEndian<std::uint64_t>(header + 18);
  const auto borders = LoadLittleEndian<std::uint64_t>(header + 26);
  WS_RETURN_IF_ERROR(CheckSize(index, borders));
  index.documents = borders - 1;
  char ends[16] = {};
  WS_RETURN_IF_ERROR(ReadExactly(file, index.BordersAt(), 8, ends));
  WS_RETURN_IF_ERROR(ReadExactly(file, index.BordersAt() + 8 * index.documents, 8, ends + 8));
  const auto first = LoadLittleEndian<std::int64_t>(ends);
  const auto last = LoadLittleEndian<std::uint64_t>(ends + 8);
  if (first != 0 || last != index.sequences) {
    return Broken(file, index.BordersAt(),
                  StrCat("documents are said to begin at sequence ", first, " and to end at ", last,
                         ", expected 0 and ", index.sequences));
  }
  Result<std::unique_ptr<RandomAccessFile>> data = fs.Open(MegatronDataPath(path));
  if (!data.ok()) {
    return data.status().WithContext(StrCat(
        "'", file.path(), "' needs the ids beside it, in a file of the same name with .bin"));
  }
  index.data = *std::move(data);
  return index;
}

// In the case of the name that is there: "A.IDX" has its ids in "A.BIN".
std::string WithSuffix(const std::string& path, const char* lower, const char* upper) {
  if (path.size() <= 4) return path;
  const char letter = path[path.size() - 3];
  return path.substr(0, path.size() - 4) + (letter >= 'A' && letter <= 'Z' ? upper : lower);
}

}  // namespace

std::string MegatronIndexPath(const std::string& path) { return WithSuffix(path, ".idx", ".IDX"); }
std::string MegatronDataPath(const std::string& path) { return WithSuffix(path, ".bin", ".BIN"); }

Result<std::shared_ptr<ShardReader>> OpenMegatronShard(FileSystem& fs, const std::string& path,
                                                       const ReadOptions& options) {
  WS_ASSIGN_OR_RETURN(Index index, OpenIndex(fs, path));
  return std::shared_ptr<ShardReader>(
      std::make_shared<MegatronShardReader>(std::move(index), options.record_bytes));
}

}  // namespace widestream
