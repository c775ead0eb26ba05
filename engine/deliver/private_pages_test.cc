#include "engine/deliver/private_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace widestream::delivery {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 512;

class PrivatePagesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    file_ = FileDescriptor(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file_.get(), kPages * kPage), 0);
    host_ = Map(MAP_SHARED);
    client_ = Map(MAP_PRIVATE | MAP_NORESERVE);
  }
  void TearDown() override {
    munmap(host_, kPages * kPage);
    munmap(client_, kPages * kPage);
  }
  std::byte* Map(int flags) const {
    void* data = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, flags, file_.get(), 0);
    EXPECT_NE(data, MAP_FAILED);
    return static_cast<std::byte*>(data);
  }
  // The first byte of each page that is not `value`.
  std::size_t Others(int value) const {
    std::size_t others = 0;
    for (std::size_t i = 0; i < kPages; ++i) {
      others +=
          static_cast<int>(static_cast<volatile std::byte*>(client_)[i * kPage]) == value ? 0 : 1;
    }
    return others;
  }

  FileDescriptor file_;
  std::byte* host_ = nullptr;
  std::byte* client_ = nullptr;
};

TEST_P(PrivatePagesTest, WhatWasWrittenIsForgottenAndTheRestFollowsTheFile) {
  const PrivatePages pages(GetParam());
  std::mt19937 random(1);
  for (int round = 1; round <= 60; ++round) {
    std::memset(host_, round, kPages * kPage);
    ASSERT_EQ(Others(round), 0U);
    // Single pages, runs, all, and none.
    const std::size_t writes = round % 4 == 0 ? 0 : round % 4 == 1 ? kPages : random() % 200;
    for (std::size_t i = 0; i < writes; ++i) {
      client_[(writes == kPages ? i : random() % kPages) * kPage + random() % kPage] =
          std::byte{0xff};
    }
    pages.Drop(client_, kPages * kPage);
  }
}

TEST_P(PrivatePagesTest, OnlyTheGivenRangeIsTouched) {
  const PrivatePages pages(GetParam());
  std::memset(host_, 1, kPages * kPage);
  std::memset(client_, 2, kPages * kPage);
  pages.Drop(client_ + 3 * kPage, 4 * kPage);
  EXPECT_EQ(Others(2), 4U);
  pages.Drop(client_, 0);
  EXPECT_EQ(Others(2), 4U);
}

INSTANTIATE_TEST_SUITE_P(ByKernel, PrivatePagesTest,
                         testing::Values("/proc/self/pagemap", "/nowhere"));

TEST(PrivatePages, MemoryThatWasOnlyReadStaysMapped) {
  const FileDescriptor file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kPages * kPage), 0);
  const std::string zeros(kPages * kPage, '\0');
  ASSERT_EQ(write(file.get(), zeros.data(), zeros.size()), static_cast<ssize_t>(zeros.size()));
  auto* data = static_cast<volatile std::byte*>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0));
  ASSERT_NE(data, MAP_FAILED);
  const auto faults = [&] {
    rusage before{};
    rusage after{};
    getrusage(RUSAGE_THREAD, &before);
    for (std::size_t i = 0; i < kPages; ++i) static_cast<void>(data[i * kPage]);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  const auto first = faults();
  const PrivatePages pages;
  auto* memory = const_cast<std::byte*>(data);
  pages.Drop(memory, kPages * kPage);
  const auto again = faults();
  PrivatePages("/nowhere").Drop(memory, kPages * kPage);
  const auto unmapped = faults();
  EXPECT_GE(first, 16);
  EXPECT_GE(unmapped, 16);
  // A kernel before 6.7 unmaps them all.
  if (again < 16) {
    EXPECT_EQ(again, 0);
  }
  munmap(memory, kPages * kPage);
}

}  // namespace
}  // namespace widestream::delivery
