// The checks that a Parquet file must pass before its footer is given to the Parquet library.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

inline constexpr std::uint64_t kMaxParquetFooterBytes = 64ULL << 20;
inline constexpr std::uint64_t kMaxParquetSchemaDepth = 64;
inline constexpr std::uint64_t kMaxParquetFooterStructs = 1'000'000;

// Walks the footer (Thrift compact protocol) without building anything: it must be one complete
// struct, with no list longer than its bytes, at most kMaxParquetFooterStructs structs, and a
// schema nested at most kMaxParquetSchemaDepth deep. The library would recurse over the schema (its
// stack ends at some ten thousand levels) and allocate close to a kilobyte for a column chunk that
// takes four bytes in the file.
Status CheckParquetFooter(std::string_view footer);

// Checks magic, footer length and footer of a file. Returns the footer's length. Messages do not
// name the file.
Result<std::uint64_t> CheckParquetFile(const RandomAccessFile& file);

}  // namespace widestream
