#include "engine/formats/parquet_footer.h"

#include <algorithm>
#include <string>
#include <vector>

namespace widestream {
namespace {

constexpr int kMaxThriftDepth = 32;

// Types of the Thrift compact protocol.
enum ThriftType : std::uint8_t {
  kStop = 0,
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
  kUuid = 13,
};

// Reads forward; every function is false at the first defect.
class ThriftWalk {
 public:
  explicit ThriftWalk(std::string_view bytes) : bytes_(bytes) {}

  bool SkipStruct(int depth) {
    if (depth > kMaxThriftDepth || ++structs_ > kMaxParquetFooterStructs) return false;
    std::int64_t id = 0;
    while (true) {
      std::uint8_t type = 0;
      if (!ReadField(&id, &type)) return false;
      if (type == kStop) return true;
      if (!SkipValue(type, depth)) return false;
    }
  }

  // FileMetaData: field 2 is the schema.
  bool WalkFileMetaData() {
    ++structs_;
    std::int64_t id = 0;
    while (true) {
      std::uint8_t type = 0;
      if (!ReadField(&id, &type)) return false;
      if (type == kStop) return true;
      if (id == 2 && type == kList) {
        if (!WalkSchema()) return false;
      } else if (!SkipValue(type, 0)) {
        return false;
      }
    }
  }

  bool too_deep() const { return too_deep_; }
  bool too_many_structs() const { return structs_ > kMaxParquetFooterStructs; }

 private:
  // The schema is the list of its nodes in pre-order; field 5 of a node is its number of children.
  bool WalkSchema() {
    std::uint8_t type = 0;
    std::uint64_t count = 0;
    if (!ReadListHeader(&type, &count) || (type != kStruct && count > 0)) return false;
    std::vector<std::uint64_t> open;  // children still to come of each open group
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t children = 0;
      if (!WalkSchemaElement(&children)) return false;
      while (!open.empty() && open.back() == 0) open.pop_back();
      if (!open.empty()) --open.back();
      if (children > 0) open.push_back(children);
      if (open.size() > kMaxParquetSchemaDepth) {
        too_deep_ = true;
        return false;
      }
    }
    return true;
  }
  bool WalkSchemaElement(std::uint64_t* children) {
    if (++structs_ > kMaxParquetFooterStructs) return false;
    std::int64_t id = 0;
    while (true) {
      std::uint8_t type = 0;
      if (!ReadField(&id, &type)) return false;
      if (type == kStop) return true;
      if (id == 5 && type == kI32) {
        std::int64_t value = 0;
        if (!ReadZigzag(&value) || value < 0) return false;
        *children = static_cast<std::uint64_t>(value);
      } else if (!SkipValue(type, 1)) {
        return false;
      }
    }
  }

  bool SkipValue(std::uint8_t type, int depth) {
    std::uint64_t size = 0;
    switch (type) {
      case kTrue:
      case kFalse:
        return true;  // the value is in the type
      case kByte:
        return Skip(1);
      case kI16:
      case kI32:
      case kI64:
        return ReadVarint(&size);
      case kDouble:
        return Skip(8);
      case kUuid:
        return Skip(16);
      case kBinary:
        return ReadVarint(&size) && Skip(size);
      case kList:
      case kSet:
        return SkipList(depth);
      case kMap:
        return SkipMap(depth);
      case kStruct:
        return SkipStruct(depth + 1);
      default:
        return false;
    }
  }
  bool SkipElement(std::uint8_t type, int depth) {
    // In a collection a boolean takes a byte.
    if (type == kTrue || type == kFalse) return Skip(1);
    return SkipValue(type, depth);
  }
  bool SkipList(int depth) {
    std::uint8_t type = 0;
    std::uint64_t count = 0;
    if (depth > kMaxThriftDepth || !ReadListHeader(&type, &count)) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!SkipElement(type, depth + 1)) return false;
    }
    return true;
  }
  bool SkipMap(int depth) {
    std::uint64_t count = 0;
    if (depth > kMaxThriftDepth || !ReadVarint(&count) || count > left()) return false;
    if (count == 0) return true;
    std::uint8_t types = 0;
    if (!ReadByte(&types)) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!SkipElement(types >> 4, depth + 1) || !SkipElement(types & 15, depth + 1)) return false;
    }
    return true;
  }

  bool ReadField(std::int64_t* id, std::uint8_t* type) {
    std::uint8_t head = 0;
    if (!ReadByte(&head)) return false;
    *type = head & 15;
    if (*type == kStop) return true;
    if (head >> 4 != 0) {
      *id += head >> 4;
      return true;
    }
    return ReadZigzag(id);
  }
  bool ReadListHeader(std::uint8_t* type, std::uint64_t* count) {
    std::uint8_t head = 0;
    if (!ReadByte(&head)) return false;
    *type = head & 15;
    *count = head >> 4;
    if (*count == 15 && !ReadVarint(count)) return false;
    return *count <= left();  // an element takes at least a byte
  }
  bool ReadByte(std::uint8_t* byte) {
    if (at_ >= bytes_.size()) return false;
    *byte = static_cast<std::uint8_t>(bytes_[at_++]);
    return true;
  }
  bool ReadVarint(std::uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      std::uint8_t byte = 0;
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool ReadZigzag(std::int64_t* value) {
    std::uint64_t raw = 0;
    if (!ReadVarint(&raw)) return false;
    *value = static_cast<std::int64_t>(raw >> 1) ^ -static_cast<std::int64_t>(raw & 1);
    return true;
  }
  bool Skip(std::uint64_t count) {
    if (count > left()) return false;
    at_ += static_cast<std::size_t>(count);
    return true;
  }
  std::uint64_t left() const { return bytes_.size() - at_; }

  const std::string_view bytes_;
  std::size_t at_ = 0;
  std::uint64_t structs_ = 0;
  bool too_deep_ = false;
};

}  // namespace

Status CheckParquetFooter(std::string_view footer) {
  ThriftWalk walk(footer);
  if (walk.WalkFileMetaData()) return {};
  if (walk.too_deep()) {
    return Status::DataCorruption("its schema is nested more than " +
                                  std::to_string(kMaxParquetSchemaDepth) +
                                  " levels deep, which no Parquet writer does; restore the file");
  }
  if (walk.too_many_structs()) {
    return Status::ResourceExhausted(
        "its footer describes more than " + std::to_string(kMaxParquetFooterStructs) +
        " column chunks and their parts; write it with fewer columns or larger row groups");
  }
  return Status::DataCorruption("its footer is corrupt; restore the file");
}

Result<std::uint64_t> CheckParquetFile(const RandomAccessFile& file) {
  constexpr std::uint64_t kHeadBytes = 4;
  constexpr std::uint64_t kTailBytes = 8;
  const std::uint64_t size = file.size_bytes();
  if (size < kHeadBytes + kTailBytes) {
    return Status::DataCorruption(
        "it has only " + std::to_string(size) +
        " bytes, so it is no Parquet file, or it was cut short; restore or remove it");
  }
  char head[kHeadBytes];
  char tail[kTailBytes];
  WS_RETURN_IF_ERROR(ReadExactly(file, 0, kHeadBytes, head));
  WS_RETURN_IF_ERROR(ReadExactly(file, size - kTailBytes, kTailBytes, tail));
  const std::string_view first(head, kHeadBytes);
  const std::string_view last(tail + 4, 4);
  if (first == "PARE" || last == "PARE") {
    return Status::InvalidArgument(
        "it is an encrypted Parquet file, which is not supported; write it without encryption");
  }
  if (first != "PAR1") {
    return Status::DataCorruption(
        "it does not begin with 'PAR1', so it is no Parquet file; correct the path or the format");
  }
  if (last != "PAR1") {
    return Status::DataCorruption(
        "it does not end with 'PAR1': it was cut short or is still being written; restore it");
  }
  std::uint64_t footer_bytes = 0;
  for (int i = 3; i >= 0; --i) {
    footer_bytes = (footer_bytes << 8) | static_cast<unsigned char>(tail[i]);
  }
  if (footer_bytes == 0 || footer_bytes > size - kHeadBytes - kTailBytes) {
    return Status::DataCorruption("its footer claims " + std::to_string(footer_bytes) +
                                  " bytes of the file's " + std::to_string(size) +
                                  "; restore the file");
  }
  if (footer_bytes > kMaxParquetFooterBytes) {
    return Status::ResourceExhausted("its footer has " + std::to_string(footer_bytes) +
                                     " bytes, the limit is " +
                                     std::to_string(kMaxParquetFooterBytes) +
                                     "; write it with fewer columns or larger row groups");
  }
  std::string footer(static_cast<std::size_t>(footer_bytes), '\0');
  WS_RETURN_IF_ERROR(
      ReadExactly(file, size - kTailBytes - footer_bytes, footer.size(), footer.data()));
  WS_RETURN_IF_ERROR(CheckParquetFooter(footer));
  return footer_bytes;
}

}  // namespace widestream
