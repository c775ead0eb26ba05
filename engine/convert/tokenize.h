// TokenizeJob: files of records in, a Megatron .bin and .idx of their token ids out, on all cores.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/cancellation.h"
#include "engine/base/status.h"
#include "engine/job/spec.h"
#include "engine/storage/file_system.h"
#include "engine/transform/id_buffer.h"
#include "engine/transform/tokenizer.h"

namespace widestream {

// Turns texts into ids. Called by several threads at once.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Appends the ids of all texts to `ids` and, for each text, the size of `ids` after it to `ends`.
  virtual Status Encode(std::span<const std::string_view> texts, IdBuffer<std::uint32_t>* ids,
                        std::vector<std::uint64_t>* ends) const = 0;
  // The largest id + 1.
  virtual std::uint32_t VocabularySize() const = 0;
  // Equal for equal ids of every text.
  virtual std::string Digest() const = 0;
};

// The engine's own tokenizer; special tokens in texts are ordinary characters.
std::unique_ptr<TextEncoder> MakeTextEncoder(std::shared_ptr<const Tokenizer> tokenizer);

struct TokenizeOptions {
  SourceSpec input;                        // paths (absolute), format and text count
  std::string output;                      // absolute; ".bin" and ".idx" are put behind it
  std::vector<std::uint32_t> append;       // ids after each document that has any
  bool skip_bad_records = false;           // else the first one is an error
  std::uint64_t record_bytes = 32U << 20;  // longer records are bad
  std::uint32_t threads = 0;               // 0 = one per core
  bool overwrite = false;                  // replace an output that is there
  bool restart = false;                    // forget what an interrupted run has done
  // How much output of a shard is made between two places to resume at.
  std::uint64_t checkpoint_bytes = 64U << 20;
};

struct TokenizeCounts {
  std::uint64_t documents = 0;   // good records, each one document of the output
  std::uint64_t empty = 0;       // of them, those without any text
  std::uint64_t bad = 0;         // records left out
  std::uint64_t tokens = 0;      // appended ones counted
  std::uint64_t text_bytes = 0;  // UTF-8 of the texts
};

struct TokenizeProgress {
  TokenizeCounts all;
  TokenizeCounts resumed;  // of `all`, what an earlier run had done
  std::uint64_t shards = 0;
  std::uint64_t shards_done = 0;
  std::uint64_t input_bytes = 0;       // of the files
  std::uint64_t input_bytes_done = 0;  // a compressed file counts when it is done
  bool assembling = false;             // all is tokenized; the output is put together
};

// Records become documents in the order of the shards (sorted by path) and, inside, of the records.
// The output depends on the input, the encoder and `append` only: not on threads, time, or how
// often the work was interrupted.
//
// Work in progress lies in the folder OUTPUT.parts: for each shard its ids, its lengths, and a
// small `.state` file (JSON) that says how far both are whole. A new run with the same input and
// settings goes on there; with others it is refused. The output appears by renaming, .idx last, and
// the folder is then removed: where an .idx is, the data set is whole.
//
// Thread safety: Run once; Progress and the cancellation from any thread meanwhile. Memory: about
// three blocks of 1 MiB of text, or of one record, a thread.
class TokenizeJob {
 public:
  // Lists the input and reads what an earlier run left. NotFound, InvalidArgument (an output that
  // is there, other settings, an unknown format), DataCorruption.
  static Result<std::unique_ptr<TokenizeJob>> Make(std::shared_ptr<FileSystem> fs,
                                                   std::shared_ptr<const TextEncoder> encoder,
                                                   TokenizeOptions options);
  virtual ~TokenizeJob() = default;

  // Works until the output is there, or an error (naming file and record), or Cancelled. After an
  // error or a cancellation a new job goes on.
  virtual Status Run(const CancellationToken& token) = 0;
  virtual TokenizeProgress Progress() const = 0;
  // Of an id in the .bin file: 2 (uint16) or 4 (int32).
  virtual std::uint32_t id_bytes() const = 0;
  // Why the first of the bad records that were left out was bad; "" if there is none.
  virtual std::string FirstBadRecord() const = 0;
};

}  // namespace widestream
