#include "engine/formats/webdataset.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

std::string Octal(std::uint64_t value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
  return text;
}

// A header and the padded content.
std::string Member(const std::string& name, const std::string& content, char type = '0',
                   const std::string& prefix = "") {
  std::string block(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) {
    block.replace(at, text.size(), text);
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(124, Octal(content.size(), 11));
  put(136, Octal(0, 11));
  put(148, std::string(8, ' '));
  block[156] = type;
  put(257, std::string("ustar\0", 6) + "00");
  put(345, prefix);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, Octal(sum, 6) + std::string("\0 ", 2));
  block += content;
  block.resize((block.size() + 511) / 512 * 512, '\0');
  return block;
}

std::string Pax(const std::string& key, const std::string& value) {
  std::size_t length = key.size() + value.size() + 3;
  while (std::to_string(length).size() + key.size() + value.size() + 3 != length) ++length;
  return std::to_string(length) + " " + key + "=" + value + "\n";
}

// Two blocks of zeros.
std::string End() { return std::string(std::size_t{1024}, '\0'); }

class WebDatasetTest : public testing::Test {
 protected:
  Result<std::shared_ptr<ShardReader>> Open(std::string_view content, const char* text = "text",
                                            const char* name = "a.tar") {
    ReadOptions options;
    options.text = text;
    options.record_bytes = 2000;
    return OpenWebDatasetShard(*LocalFileSystem(), folder_.Write(name, content), options);
  }
  // Texts, or "error: ..." of each sample; a fault of the file is the last, "fault: ...".
  std::vector<std::string> Read(std::string_view content, const char* text = "text",
                                std::uint64_t block_records = 1000) {
    std::vector<std::string> all;
    const auto shard = Open(content, text);
    EXPECT_TRUE(shard.ok()) << shard.status().ToString();
    std::uint64_t offset = 0;
    while (true) {
      const auto unit = (*shard)->OpenUnit(0, offset);  // a restart at each block
      EXPECT_TRUE(unit.ok()) << unit.status().ToString();
      RecordBlock block;
      const Status status = (*unit)->Next(block_records, 1U << 20, &block);
      if (!status.ok()) {
        all.push_back("fault: " + status.message());
        return all;
      }
      for (const RawRecord& record : block.records) {
        all.push_back(record.error < 0
                          ? std::string(record.text)
                          : "error: " + block.errors[static_cast<std::size_t>(record.error)]);
      }
      if (block.end_of_unit) return all;
      EXPECT_GT(block.next_offset, offset);
      if (block.next_offset <= offset) return all;
      offset = block.next_offset;
    }
  }
  static bool Has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  }

  TemporaryFolder folder_;
};

using Texts = std::vector<std::string>;

TEST_F(WebDatasetTest, MembersOfOneKeyMakeASample) {
  const std::string tar = Member("d/", "", '5') + Member("d/0.jpg", std::string(3000, 'j')) +
                          Member("d/0.txt", "zero") + Member("README", "no sample") +
                          Member("d/1.TXT", "one") + Member("d/1.json", "{}") +
                          Member("d/2.txt", "") + End();
  for (const std::uint64_t records : {1, 2, 3, 100}) {
    EXPECT_EQ(Read(tar, "txt", records), (Texts{"zero", "one", ""})) << records;
    EXPECT_EQ(Read(tar, "text", records), (Texts{"zero", "one", ""})) << records;
  }
}

TEST_F(WebDatasetTest, AFieldOfAJsonMemberIsTheText) {
  const std::string tar = Member("0.json", R"({"a":{"b":"x\ny"}})") +
                          Member("1.json", R"({"a":1})") + Member("2.json", "{") +
                          Member("3.meta.json", R"({"a":{"b":"m"}})") + End();
  const Texts found = Read(tar, "json.a.b");
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0], "x\ny");
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(found[i].starts_with("error: sample ")) << found[i];
  EXPECT_EQ(Read(tar, "meta.json.a.b")[3], "m");
  EXPECT_EQ(Read(tar, "json")[1], R"({"a":1})");
}

TEST_F(WebDatasetTest, LongNamesOfUstarPaxAndGnu) {
  const std::string folder(150, 'f');
  const std::string name = std::string(120, 'n') + ".txt";
  const std::string tar =
      Member("n.txt", "ustar", '0', folder) +
      Member("././@PaxHeader", Pax("mtime", "1.5") + Pax("path", folder + "/" + name), 'x') +
      Member("short.jpg", "pax") +
      Member("././@LongLink", folder + "/2" + name + std::string(1, '\0'), 'L') +
      Member("short.jpg", "gnu") + Member("././@PaxHeader", Pax("size", "5"), 'x') +
      Member("3.txt", "sized") + Member("pax_global_header", Pax("comment", "x"), 'g') +
      Member("4.txt", "last") + End();
  for (const std::uint64_t records : {1, 100}) {
    EXPECT_EQ(Read(tar, "txt", records), (Texts{"ustar", "pax", "gnu", "sized", "last"}));
  }
}

// C-03: a truncated tar, a doubled key: errors name sample and offset, the samples before are
// given.
TEST_F(WebDatasetTest, C03_ErrorsAreOfASampleOrNameTheOffset) {
  const Texts doubled =
      Read(Member("0.txt", "a") + Member("0.txt", "b") + Member("1.txt", "c") + End());
  EXPECT_EQ(doubled, (Texts{"error: sample '0': the sample has two members 'txt'", "c"}));
  EXPECT_EQ(Read(Member("0.jpg", "a") + Member("1.txt", "c") + End()),
            (Texts{"error: sample '0': the sample has no member 'text'; it has 'jpg'", "c"}));
  EXPECT_EQ(Read(Member("0.txt", "\xff") + Member("1.txt", std::string(2001, 'x')) + End()),
            (Texts{"error: sample '0': invalid UTF-8",
                   "error: sample '1': the member has 2001 bytes, more than errors.record_bytes = "
                   "2000"}));
  const std::string tar = Member("0.txt", "a") + Member("1.txt", std::string(600, 'b'));
  for (const std::size_t size : {std::size_t{2200}, std::size_t{2400}, tar.size()}) {
    for (const std::uint64_t records : {1, 100}) {
      const Texts cut = Read(std::string_view(tar).substr(0, size), "txt", records);
      ASSERT_EQ(cut.size(), 2U) << size;
      EXPECT_EQ(cut[0], "a");
      EXPECT_TRUE(Has(cut[1], "a.tar', at byte ")) << cut[1];
      EXPECT_TRUE(Has(cut[1], "sample '1'")) << cut[1];
    }
  }
  // Nobody knows whether the sample would have gone on.
  for (const std::size_t size : {1200, 1600}) {
    const Texts open = Read(std::string_view(tar).substr(0, size));
    ASSERT_EQ(open.size(), 1U);
    EXPECT_TRUE(Has(open[0], "fault: sample '0': ") && Has(open[0], "at byte 1024")) << open[0];
  }
}

TEST_F(WebDatasetTest, NamesAreDataAndLinksAreNotFollowed) {
  const Texts found =
      Read(Member("../0.txt", "a") + Member("/etc/1.txt", "b") + Member("x/../../2.txt", "c") +
           Member("3.txt", "", '2') + Member("4.txt", "", '1') + Member("5..txt", "d") +
           Member("6.txt", "", '3') + Member("7.txt", "fine") + End());
  ASSERT_EQ(found.size(), 8U);
  for (const int i : {0, 1, 2}) EXPECT_TRUE(Has(found[i], "is absolute or has '..'")) << found[i];
  for (const int i : {3, 4, 6}) EXPECT_TRUE(Has(found[i], "link or a device")) << found[i];
  EXPECT_TRUE(Has(found[5], "it has '.txt'")) << found[5];
  EXPECT_EQ(found[7], "fine");
}

TEST_F(WebDatasetTest, HostileHeadersAreRefusedWithTheOffset) {
  std::string checksum = Member("0.txt", "a");
  checksum[3] = 'X';
  const auto with_size = [&](const std::string& field) {
    std::string block = Member("0.txt", "a");
    unsigned sum = 0;
    block.replace(124, field.size(), field);
    block.replace(148, 8, 8, ' ');
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(block[i]);
    return block.replace(148, 8, Octal(sum, 6) + std::string("\0 ", 2));
  };
  const std::pair<std::string, const char*> cases[] = {
      {checksum + End(), "at byte 0: no tar header"},
      {with_size("77777777777") + End(), "at byte 0: a member of 8589934591 bytes"},
      {with_size("\xff" + std::string(11, '\xff')) + End(), "at byte 0: a header whose size is no"},
      {with_size("\x80" + std::string(11, '\x7f')) + End(), "at byte 0: a header whose size is no"},
      {with_size("0000000000z") + End(), "at byte 0: a header whose size is no"},
      {Member("x", std::string(2U << 20, 'x'), 'L') + End(), "an extended header of 2097152"},
      {Member("x", "5 a=b\n", 'x') + Member("0.txt", "") + End(), "records have wrong lengths"},
      {Member("x", "99999999999999999999 a=b\n", 'x') + Member("0.txt", "") + End(),
       "records have wrong lengths"},
      {Member("x", Pax("size", "-1"), 'x') + Member("0.txt", "") + End(), "with the size '-1'"},
      {Member("x", Pax("GNU.sparse.major", "1"), 'x') + Member("0.txt", "") + End(), "sparse"},
      {Member("x", Pax("path", "y.txt"), 'g') + Member("0.txt", "") + End(), "a global pax header"},
      {Member("x", Pax("path", "y.txt"), 'x') + End(), "an extended header without a member"},
      {Member("0.txt", "", 'S') + End(), "a sparse member"},
      {End() + Member("0.txt", "a") + End(), "at byte 1024: data follow the end of the archive"},
      {"", "the archive is cut off"},
      {"abc", "the archive is cut off"},
  };
  for (const auto& [tar, expected] : cases) {
    const Texts found = Read(tar);
    ASSERT_EQ(found.size(), 1U) << expected;
    EXPECT_TRUE(Has(found[0], expected)) << found[0];
    EXPECT_TRUE(Has(found[0], "a.tar'")) << found[0];
  }
}

TEST_F(WebDatasetTest, BaseTwoHundredFiftySixSizesAreRead) {
  std::string tar = Member("0.txt", "abc");
  tar.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  tar.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(tar[i]);
  tar.replace(148, 8, Octal(sum, 6) + std::string("\0 ", 2));
  EXPECT_EQ(Read(tar + End()), (Texts{"abc"}));
}

// C-12: what exists only compressed is an error that says what to do.
TEST_F(WebDatasetTest, C12_CompressedArchivesAreRefused) {
  for (const char* name : {"a.tar.gz", "a.tgz", "a.tar.zst"}) {
    const auto shard = Open("x", "txt", name);
    EXPECT_EQ(shard.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Has(shard.status().message(), "unpack it to a .tar file"));
  }
  EXPECT_FALSE(Open("\x1f\x8b whatever").ok());
  EXPECT_FALSE((*Open(End()))->OpenUnit(0, 100).ok());
  EXPECT_FALSE((*Open(End()))->OpenUnit(0, 1U << 20).ok());
}

TEST_F(WebDatasetTest, AnArchiveWithoutMembersIsEmpty) { EXPECT_EQ(Read(End()), Texts{}); }

}  // namespace
}  // namespace widestream
