// Text without special tokens to ids: the hot loop of the tokenizer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "engine/transform/bpe.h"
#include "engine/transform/first_parts.h"
#include "engine/transform/id_buffer.h"
#include "engine/transform/missed_words.h"
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

// What the calls of one thread work with.
struct EncoderMemory {
  WordCache cache;
  MissedWords missed;
  // For the ids of calls that hand on something else.
  IdBuffer<std::uint32_t> ids;
};

// Immutable and thread-safe, apart from the memory that it lends out, to one call at a time.
class Encoder {
 public:
  // Keeps `bpe`.
  Encoder(const Bpe* bpe, Pattern pattern, Isa isa, bool narrow_ids);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Memory for the calls of one thread. Given back when destroyed.
  class Lease {
   public:
    explicit Lease(const Encoder* encoder) : encoder_(encoder), memory_(encoder->Take()) {}
    ~Lease() { encoder_->GiveBack(memory_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    EncoderMemory* memory() const { return memory_; }

   private:
    const Encoder* encoder_;
    EncoderMemory* memory_;
  };

  // Appends the ids of the texts; counts[i], unless null, becomes the count of the sink after text
  // i. Many texts at once are faster than one by one. Id may be uint16_t only if all ids fit.
  template <typename Id>
  void Encode(std::span<const std::string_view> texts, EncoderMemory* memory, IdSink<Id>* sink,
              std::uint64_t* counts) const;

  // Made when first needed: text in ASCII never needs it.
  const FirstParts& Parts() const;

  struct Context;  // of one Encode, see encoder.cc

 private:
  EncoderMemory* Take() const;
  void GiveBack(EncoderMemory* memory) const;
  template <typename Id>
  void EncodeHuge(std::string_view text, EncoderMemory* memory, IdSink<Id>* sink) const;

  const Bpe* bpe_;
  Pattern pattern_;
  Isa isa_;
  bool narrow_ids_;
  ScanWordsFunction scan_;
  mutable std::once_flag parts_made_;
  mutable std::unique_ptr<const FirstParts> parts_;
  mutable std::array<std::atomic<EncoderMemory*>, 32> idle_ = {};
};

}  // namespace widestream::internal
