// Conversations as token ids with a loss mask.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/transform/tokenizer.h"

namespace widestream {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// A conversation as text, with what in it is more than text.
struct ChatText {
  std::string text;
  // The places that are special tokens, ascending and apart from each other; each spells the name
  // of one. Everything else is ordinary text, whatever it spells.
  std::vector<ByteRange> special;
  // The places that a model learns to say, ascending and apart from each other.
  std::vector<ByteRange> learned;
};

// The ids of one conversation, with 1 in `loss_mask` where an id is to be learned.
struct ChatIds {
  std::vector<std::uint32_t> ids;
  std::vector<std::uint8_t> loss_mask;  // as long as `ids`
};

// Encodes what a template made. The text between special tokens is encoded as a whole, as
// transformers does, so that the ids are those of its apply_chat_template. An id is to be learned
// if any of its bytes is in a learned place. InvalidArgument for places that do not fit.
Status EncodeChat(const Tokenizer& tokenizer, const ChatText& chat, ChatIds* out);

struct ChatMessage {
  std::string_view role;
  std::string_view content;
};

// The fixed formats. docs/tokenizer.md has them as templates.
enum class ChatFormat : std::uint8_t {
  // <|im_start|>ROLE\nCONTENT<|im_end|>\n
  kChatMl,
  // <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, the
  // content without white space around it.
  kLlama3,
  // "User: CONTENT\n\n"; after the assistant's content <|endoftext|> or </s> stands before the line
  // ends.
  kPlain,
};

// "chatml", "llama3", "plain"; InvalidArgument lists them.
Result<ChatFormat> ChatFormatFromName(std::string_view name);

// Renders and encodes conversations in one of the fixed formats. Immutable, thread-safe; shares the
// tokenizer. Learned are the assistant's contents and the special token that ends them; never
// roles, line ends of the template, or what others say. Special tokens spelled in a content are
// ordinary text.
class ChatRenderer {
 public:
  // InvalidArgument names the special tokens that the tokenizer lacks.
  static Result<std::unique_ptr<const ChatRenderer>> Make(
      std::shared_ptr<const Tokenizer> tokenizer, ChatFormat format);

  // `add_generation_prompt` ends with what comes before the assistant's next words. InvalidArgument
  // for no message at all and for a role that the format does not have; an empty content is fine.
  Status Render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                ChatText* out) const;
  // Render, then EncodeChat.
  Status Encode(std::span<const ChatMessage> messages, bool add_generation_prompt,
                ChatIds* out) const;

  // The roles that the format has.
  static std::span<const std::string_view> Roles(ChatFormat format);

 private:
  ChatRenderer(std::shared_ptr<const Tokenizer> tokenizer, ChatFormat format)
      : tokenizer_(std::move(tokenizer)), format_(format) {}

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ChatFormat format_;
  std::string end_;  // of kPlain: the name of the token after the assistant's content
};

}  // namespace widestream
