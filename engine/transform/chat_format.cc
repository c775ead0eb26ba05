// The fixed formats of conversations.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/transform/chat.h"

namespace widestream {
namespace {

constexpr std::array<std::string_view, 4> kChatMlRoles = {"system", "user", "assistant", "tool"};
constexpr std::array<std::string_view, 5> kLlama3Roles = {"system", "user", "assistant", "tool",
                                                          "ipython"};
constexpr std::array<std::string_view, 3> kPlainRoles = {"system", "user", "assistant"};
constexpr std::string_view kAssistant = "assistant";

// What the `trim` filter of Jinja removes: the white space of Python's str.strip.
constexpr std::array<std::string_view, 29> kWhiteSpace = {
    "\t",           "\n",           "\x0b",         "\x0c",         "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

std::string_view Trimmed(std::string_view text) {
  const auto is_prefix = [&](std::string_view space) {
    return text.substr(0, space.size()) == space;
  };
  const auto is_suffix = [&](std::string_view space) {
    return text.size() >= space.size() && text.substr(text.size() - space.size()) == space;
  };
  for (;;) {
    const auto space = std::find_if(kWhiteSpace.begin(), kWhiteSpace.end(), is_prefix);
    if (text.empty() || space == kWhiteSpace.end()) break;
    text.remove_prefix(space->size());
  }
  for (;;) {
    const auto space = std::find_if(kWhiteSpace.begin(), kWhiteSpace.end(), is_suffix);
    if (text.empty() || space == kWhiteSpace.end()) break;
    text.remove_suffix(space->size());
  }
  return text;
}

// Puts a conversation together and notes what is special and learned in it.
class Writer {
 public:
  explicit Writer(ChatText* out) : out_(out) {
    out_->text.clear();
    out_->special.clear();
    out_->learned.clear();
  }
  void Text(std::string_view text) { out_->text += text; }
  void Special(std::string_view name) {
    const std::uint64_t begin = out_->text.size();
    out_->text += name;
    out_->special.push_back({begin, out_->text.size()});
  }
  // A content and the special token that ends it, learned together if the assistant says them.
  void Content(const ChatMessage& message, std::string_view content, std::string_view end) {
    const std::uint64_t begin = out_->text.size();
    Text(content);
    if (!end.empty()) Special(end);
    if (message.role == kAssistant) out_->learned.push_back({begin, out_->text.size()});
  }

 private:
  ChatText* const out_;
};

std::string_view PlainName(std::string_view role) {
  return role == kAssistant ? "Assistant" : role == "user" ? "User" : "System";
}

std::string Listed(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return out;
}

}  // namespace

Result<ChatFormat> ChatFormatFromName(std::string_view name) {
  if (name == "chatml") return ChatFormat::kChatMl;
  if (name == "llama3") return ChatFormat::kLlama3;
  if (name == "plain") return ChatFormat::kPlain;
  return Status::InvalidArgument("there is no chat format '" + std::string(name.substr(0, 64)) +
                                 "'; there are chatml, llama3, plain");
}

std::span<const std::string_view> ChatRenderer::Roles(ChatFormat format) {
  switch (format) {
    case ChatFormat::kChatMl:
      return kChatMlRoles;
    case ChatFormat::kLlama3:
      return kLlama3Roles;
    case ChatFormat::kPlain:
      break;
  }
  return kPlainRoles;
}

Result<std::unique_ptr<const ChatRenderer>> ChatRenderer::Make(
    std::shared_ptr<const Tokenizer> tokenizer, ChatFormat format) {
  std::unique_ptr<ChatRenderer> renderer(new ChatRenderer(std::move(tokenizer), format));
  const Tokenizer& known = *renderer->tokenizer_;
  std::vector<std::string_view> needed;
  if (format == ChatFormat::kChatMl) needed = {"<|im_start|>", "<|im_end|>"};
  if (format == ChatFormat::kLlama3) {
    needed = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  }
  if (format == ChatFormat::kPlain) {
    for (const std::string_view end : {"<|endoftext|>", "</s>", "<|end_of_text|>"}) {
      if (renderer->end_.empty() && known.SpecialTokenId(end).has_value()) renderer->end_ = end;
    }
    if (renderer->end_.empty()) {
      return Status::InvalidArgument(
          "the plain chat format needs one of the special tokens <|endoftext|>, </s> and "
          "<|end_of_text|>, and the tokenizer has none of them");
    }
  }
  std::vector<std::string_view> missing;
  for (const std::string_view name : needed) {
    if (!known.SpecialTokenId(name).has_value()) missing.push_back(name);
  }
  if (!missing.empty()) {
    return Status::InvalidArgument(
        "the chat format needs special tokens that the tokenizer does "
        "not have: " +
        Listed(missing));
  }
  return std::unique_ptr<const ChatRenderer>(std::move(renderer));
}

Status ChatRenderer::Render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                            ChatText* out) const {
  const std::span<const std::string_view> roles = Roles(format_);
  if (messages.empty()) {
    return Status::InvalidArgument("the conversation has no message; give at least one");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (std::find(roles.begin(), roles.end(), messages[i].role) != roles.end()) continue;
    return Status::InvalidArgument("message " + std::to_string(i) + " has the role '" +
                                   std::string(messages[i].role.substr(0, 64)) +
                                   "'; this chat format has " + Listed(roles));
  }
  Writer writer(out);
  switch (format_) {
    case ChatFormat::kChatMl:
      for (const ChatMessage& message : messages) {
        writer.Special("<|im_start|>");
        writer.Text(message.role);
        writer.Text("\n");
        writer.Content(message, message.content, "<|im_end|>");
        writer.Text("\n");
      }
      if (add_generation_prompt) {
        writer.Special("<|im_start|>");
        writer.Text("assistant\n");
      }
      break;
    case ChatFormat::kLlama3:
      writer.Special("<|begin_of_text|>");
      for (const ChatMessage& message : messages) {
        writer.Special("<|start_header_id|>");
        writer.Text(message.role);
        writer.Special("<|end_header_id|>");
        writer.Text("\n\n");
        writer.Content(message, Trimmed(message.content), "<|eot_id|>");
      }
      if (add_generation_prompt) {
        writer.Special("<|start_header_id|>");
        writer.Text("assistant");
        writer.Special("<|end_header_id|>");
        writer.Text("\n\n");
      }
      break;
    case ChatFormat::kPlain:
      for (const ChatMessage& message : messages) {
        writer.Text(PlainName(message.role));
        writer.Text(": ");
        writer.Content(message, message.content, message.role == kAssistant ? end_ : "");
        writer.Text("\n\n");
      }
      if (add_generation_prompt) writer.Text("Assistant:");
      break;
  }
  return {};
}

Status ChatRenderer::Encode(std::span<const ChatMessage> messages, bool add_generation_prompt,
                            ChatIds* out) const {
  ChatText text;
  WS_RETURN_IF_ERROR(Render(messages, add_generation_prompt, &text));
  return EncodeChat(*tokenizer_, text, out);
}

}  // namespace widestream
