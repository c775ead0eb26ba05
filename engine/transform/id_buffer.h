// A growing array of token ids that neither zeroes what it will overwrite nor copies on hand-over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <utility>

namespace widestream {

// Ids as uint16 or uint32. Not thread-safe. Owns its memory until Release(); throws std::bad_alloc
// when the machine has none, like a vector. Invariant: size() <= capacity().
template <typename Id>
class IdBuffer {
 public:
  IdBuffer() = default;
  ~IdBuffer() { std::free(data_); }
  IdBuffer(IdBuffer&& other) noexcept { Swap(&other); }
  IdBuffer& operator=(IdBuffer&& other) noexcept {
    Swap(&other);
    return *this;
  }
  IdBuffer(const IdBuffer&) = delete;
  IdBuffer& operator=(const IdBuffer&) = delete;

  Id* data() { return data_; }
  const Id* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  std::span<const Id> ids() const { return {data_, size_}; }

  // Makes room for `more` ids after the last one.
  void Reserve(std::size_t more) {
    if (more <= capacity_ - size_) return;
    const std::size_t wanted = std::max(size_ + more, capacity_ + capacity_ / 2);
    if (wanted > SIZE_MAX / sizeof(Id)) throw std::bad_alloc();
    void* const grown = std::realloc(data_, wanted * sizeof(Id));
    if (grown == nullptr) throw std::bad_alloc();
    data_ = static_cast<Id*>(grown);
    capacity_ = wanted;
  }
  // The ids up to `size` are there; `size` <= capacity().
  void SetSize(std::size_t size) { size_ = size; }
  void Clear() { size_ = 0; }
  // Hands the memory over; it is freed with std::free. Leaves the buffer empty.
  Id* Release() {
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  void Swap(IdBuffer* other) {
    std::swap(data_, other->data_);
    std::swap(size_, other->size_);
    std::swap(capacity_, other->capacity_);
  }

  Id* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace widestream
