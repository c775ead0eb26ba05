#include "engine/formats/parquet_footer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

std::string Varint(std::uint64_t n) {
  std::string out;
  while (n >= 128) {
    out += static_cast<char>((n & 127) | 128);
    n >>= 7;
  }
  return out + static_cast<char>(n);
}
std::string Number(std::uint64_t n) { return Varint(n << 1); }  // zigzag

std::string List(std::uint64_t count, char type) {
  if (count < 15) return std::string(1, static_cast<char>((count << 4) | type));
  return std::string(1, static_cast<char>(0xf0 | type)) + Varint(count);
}

// A SchemaElement: name "a" and, for a group, its number of children.
std::string Element(std::uint64_t children) {
  std::string out = std::string("\x48\x01", 2) + "a";
  if (children > 0) out += "\x15" + Number(children);
  return out + '\0';
}

// FileMetaData: version, schema, num_rows, row_groups.
std::string Footer(const std::string& schema, const std::string& row_groups) {
  return "\x15" + Number(1) + "\x19" + schema + "\x16" + Number(0) + "\x19" + row_groups + '\0';
}

std::string Chain(int depth) {
  std::string schema = List(depth + 1, 12);
  for (int i = 0; i < depth; ++i) schema += Element(1);
  return Footer(schema + Element(0), List(0, 12));
}

TEST(CheckParquetFooter, AcceptsAnOrdinarySchema) {
  EXPECT_TRUE(
      CheckParquetFooter(Footer(List(3, 12) + Element(2) + Element(0) + Element(0), List(0, 12)))
          .ok());
  EXPECT_TRUE(CheckParquetFooter(Chain(64)).ok());
}

TEST(CheckParquetFooter, WideIsNotDeep) {
  std::string schema = List(20001, 12) + Element(20000);
  for (int i = 0; i < 20000; ++i) schema += Element(0);
  EXPECT_TRUE(CheckParquetFooter(Footer(schema, List(0, 12))).ok());
}

TEST(CheckParquetFooter, RefusesASchemaThatWouldOverflowTheStack) {
  for (const int depth : {65, 100000}) {
    const Status status = CheckParquetFooter(Chain(depth));
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
    EXPECT_NE(status.message().find("nested more than 64"), std::string::npos);
  }
}

TEST(CheckParquetFooter, RefusesListsLongerThanTheirBytes) {
  EXPECT_FALSE(CheckParquetFooter(Footer(List(3, 12) + Element(0), List(0, 12))).ok());
  EXPECT_FALSE(CheckParquetFooter(Footer(List(1, 12) + Element(0), List(1ULL << 40, 12))).ok());
}

TEST(CheckParquetFooter, RefusesMoreStructsThanMemoryShouldHold) {
  const std::string row_groups = List(1'100'000, 12) + std::string(1'100'000, '\0');
  const Status status = CheckParquetFooter(Footer(List(1, 12) + Element(0), row_groups));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST(CheckParquetFooter, RefusesEndlessNesting) {
  EXPECT_FALSE(CheckParquetFooter("\x15" + Number(1) + std::string(100000, '\x1c')).ok());
  EXPECT_FALSE(CheckParquetFooter("\x15" + Number(1) + std::string(100000, '\x19')).ok());
}

TEST(CheckParquetFooter, EveryCutIsRefused) {
  const std::string footer = Footer(List(2, 12) + Element(1) + Element(0), List(0, 12));
  for (std::size_t size = 0; size < footer.size(); ++size) {
    EXPECT_FALSE(CheckParquetFooter(std::string_view(footer).substr(0, size)).ok()) << size;
  }
}

RC_GTEST_PROP(CheckParquetFooter, AnyBytesGiveAnAnswer, (const std::string& bytes)) {
  RC_TAG(CheckParquetFooter(bytes).ok() ? "accepted" : "refused");
}

TEST(CheckParquetFile, NamesTheDefect) {
  const TemporaryFolder folder;
  const auto check = [&](const std::string& content) {
    const auto file = LocalFileSystem()->Open(folder.Write("f", content));
    return CheckParquetFile(**file).status().message();
  };
  const std::string footer = Footer(List(1, 12) + Element(0), List(0, 12));
  const std::string size(1, static_cast<char>(footer.size()));
  EXPECT_EQ(check("PAR1" + footer + size + std::string("\0\0\0PAR1", 7)), "");
  EXPECT_NE(check("").find("only 0 bytes"), std::string::npos);
  EXPECT_NE(check("{\"text\":\"a\"}\n").find("does not begin with 'PAR1'"), std::string::npos);
  EXPECT_NE(check("PAR1" + footer + "PAR").find("does not end with 'PAR1'"), std::string::npos);
  EXPECT_NE(check("PAR1xxxxPARE").find("encrypted"), std::string::npos);
  EXPECT_NE(check("PAR1\xff\xff\xff\xffPAR1").find("claims 4294967295 bytes"), std::string::npos);
  EXPECT_NE(check(std::string("PAR1\0\0\0\0PAR1", 12)).find("claims 0 bytes"), std::string::npos);
}

}  // namespace
}  // namespace widestream
