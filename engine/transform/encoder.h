// Text without special tokens to ids: the hot loop of the tokenizer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "engine/transform/bpe.h"
#include "engine/transform/character_parts.h"
#include "engine/transform/id_buffer.h"
#include "engine/transform/word_cache.h"
#include "engine/transform/word_scanner.h"

namespace widestream::internal {

// Where ids go: a buffer that grows, or nothing but their number (`buffer` null).
template <typename Id>
struct IdSink {
  IdBuffer<Id>* buffer;
  std::uint64_t count = 0;
  std::uint64_t most = UINT64_MAX;  // encoding may stop once this many are there
};

// Immutable and thread-safe, apart from the caches that it lends out, one to each call.
class Encoder {
 public:
  // Keeps `bpe`.
  Encoder(const Bpe* bpe, Pattern pattern, Isa isa, bool narrow_ids);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // A cache for the calls of one thread. Given back when destroyed.
  class Lease {
   public:
    explicit Lease(const Encoder* encoder) : encoder_(encoder), cache_(encoder->Take()) {}
    ~Lease() { encoder_->GiveBack(cache_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache* cache() const { return cache_; }

   private:
    const Encoder* encoder_;
    WordCache* cache_;
  };

  // Appends the ids of `text`. Id may be uint16_t only if all ids fit.
  template <typename Id>
  void Encode(std::string_view text, WordCache* cache, IdSink<Id>* sink) const;

  // Made when first needed: text in ASCII never needs it.
  const CharacterParts& Parts() const;

  struct Context;  // of one Encode, see encoder.cc

 private:
  WordCache* Take() const;
  void GiveBack(WordCache* cache) const;
  template <typename Id>
  void EncodeHuge(std::string_view text, WordCache* cache, IdSink<Id>* sink) const;

  const Bpe* bpe_;
  Pattern pattern_;
  Isa isa_;
  bool narrow_ids_;
  ScanWordsFunction scan_;
  mutable std::once_flag parts_made_;
  mutable std::unique_ptr<const CharacterParts> parts_;
  mutable std::array<std::atomic<WordCache*>, 32> idle_ = {};
};

}  // namespace widestream::internal
