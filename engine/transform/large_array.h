// Zeroed memory for large tables, in huge pages where the kernel has them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace widestream::internal {

// A fixed number of T without constructors or destructors. Not thread-safe. Owns its memory. Pages
// are the kernel's until they are touched, so a table that is not used costs nothing.
template <typename T>
class LargeArray {
 public:
  LargeArray() = default;
  explicit LargeArray(std::size_t size) : size_(size), mapped_bytes_(size * sizeof(T) + kHugePage) {
    mapped_ =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    // Fewer entries of the machine's page tables; without huge pages this changes nothing.
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped_);
    const std::uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(mapped_) + (aligned - begin));
    const std::size_t whole = size * sizeof(T) / kHugePage * kHugePage;
    if (whole != 0) ::madvise(data_, whole, MADV_HUGEPAGE);
  }
  ~LargeArray() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  }
  LargeArray(LargeArray&& other) noexcept { Swap(&other); }
  LargeArray& operator=(LargeArray&& other) noexcept {
    Swap(&other);
    return *this;
  }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  void Swap(LargeArray* other) {
    std::swap(data_, other->data_);
    std::swap(size_, other->size_);
    std::swap(mapped_, other->mapped_);
    std::swap(mapped_bytes_, other->mapped_bytes_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace widestream::internal
