#include "engine/deliver/messages.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/wire.h"
#include "engine/deliver/frame.h"

namespace widestream::delivery {
namespace {

constexpr std::uint64_t kMaxNameBytes = 4096;
constexpr std::uint64_t kMaxErrorBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kMaxKeys = 4096;
constexpr std::uint32_t kMaxMicrobatches = 65536;
constexpr std::uint8_t kMaxTensors = 64;
constexpr std::uint8_t kMaxDimensions = 8;
constexpr std::uint64_t kMaxTensorNameBytes = 64;
constexpr std::uint64_t kMaxColumn = 1 << 20;  // sources, ranks, slabs
constexpr std::uint64_t kMaxSlabBytes = std::uint64_t{1} << 44;
constexpr std::size_t kTensorAlignmentBytes = 64;

std::string_view Cut(std::string_view text, std::size_t max_bytes) {
  return text.substr(0, max_bytes);
}

Result<std::string> ReadText(WireReader& reader, std::uint64_t max_bytes) {
  WS_ASSIGN_OR_RETURN(const std::string_view text, reader.Bytes(max_bytes));
  return std::string(text);
}

Result<std::optional<std::uint64_t>> ReadOptional(WireReader& reader) {
  WS_ASSIGN_OR_RETURN(const bool given, reader.Bool());
  WS_ASSIGN_OR_RETURN(const std::uint64_t value, reader.U64());
  if (!given && value != 0) return reader.Corrupt("a number that is not given must be 0");
  return given ? std::optional<std::uint64_t>(value) : std::nullopt;
}

void WriteOptional(WireWriter& writer, std::optional<std::uint64_t> value) {
  writer.Bool(value.has_value());
  writer.U64(value.value_or(0));
}

void WriteShape(WireWriter& writer, const std::vector<std::int64_t>& shape) {
  writer.U8(static_cast<std::uint8_t>(shape.size()));
  for (const std::int64_t size : shape) writer.I64(size);
}

Result<std::vector<std::int64_t>> ReadShape(WireReader& reader) {
  WS_ASSIGN_OR_RETURN(const std::uint8_t dimensions, reader.U8());
  if (dimensions > kMaxDimensions) {
    return reader.Corrupt(StrCat("a shape of ", dimensions, " dimensions"));
  }
  std::vector<std::int64_t> shape;
  for (std::uint8_t d = 0; d < dimensions; ++d) {
    WS_ASSIGN_OR_RETURN(const std::int64_t size, reader.I64());
    if (size < 0) return reader.Corrupt(StrCat("a dimension of ", size));
    shape.push_back(size);
  }
  return shape;
}

void WriteTensor(WireWriter& writer, const TensorView& tensor) {
  writer.Bytes(tensor.name);
  writer.U8(static_cast<std::uint8_t>(tensor.type));
  WriteShape(writer, tensor.shape);
  writer.U64(tensor.offset_bytes);
}

Result<TensorView> ReadTensor(WireReader& reader, std::uint64_t slab_bytes) {
  TensorView tensor;
  WS_ASSIGN_OR_RETURN(tensor.name, ReadText(reader, kMaxTensorNameBytes));
  WS_ASSIGN_OR_RETURN(const std::uint8_t type, reader.U8());
  if (type > static_cast<std::uint8_t>(DataType::kBool)) {
    return reader.Corrupt(StrCat("tensor type ", type, " is unknown"));
  }
  tensor.type = static_cast<DataType>(type);
  WS_ASSIGN_OR_RETURN(tensor.shape, ReadShape(reader));
  std::uint64_t bytes = SizeOf(tensor.type);
  for (const std::int64_t size : tensor.shape) {
    if (size != 0 && bytes > kMaxSlabBytes / static_cast<std::uint64_t>(size)) {
      return reader.Corrupt("a tensor that is larger than any slab");
    }
    bytes *= static_cast<std::uint64_t>(size);
  }
  WS_ASSIGN_OR_RETURN(const std::uint64_t offset, reader.U64());
  if (offset % kTensorAlignmentBytes != 0 || offset > slab_bytes || bytes > slab_bytes - offset) {
    return reader.Corrupt(StrCat("tensor '", tensor.name, "' of ", bytes, " bytes at ", offset,
                                 " does not lie in a slab of ", slab_bytes));
  }
  tensor.offset_bytes = offset;
  return tensor;
}

void WriteView(WireWriter& writer, const BatchView& view) {
  writer.U32(view.rank);
  writer.U64(view.size_bytes);
  writer.U32(static_cast<std::uint32_t>(view.microbatches.size()));
  for (const MicrobatchView& microbatch : view.microbatches) {
    writer.I64(microbatch.max_seqlen);
    writer.U64(microbatch.real_tokens);
    WriteShape(writer, microbatch.shape);
    writer.U8(static_cast<std::uint8_t>(microbatch.tensors.size()));
    for (const TensorView& tensor : microbatch.tensors) WriteTensor(writer, tensor);
  }
}

Result<BatchView> ReadView(WireReader& reader, std::uint64_t slab_bytes) {
  BatchView view;
  WS_ASSIGN_OR_RETURN(view.rank, reader.U32());
  WS_ASSIGN_OR_RETURN(const std::uint64_t size_bytes, reader.U64());
  if (size_bytes > slab_bytes) {
    return reader.Corrupt(StrCat("a batch of ", size_bytes, " bytes in a slab of ", slab_bytes));
  }
  view.size_bytes = size_bytes;
  WS_ASSIGN_OR_RETURN(const std::uint32_t microbatches, reader.U32());
  if (microbatches > kMaxMicrobatches) {
    return reader.Corrupt(StrCat(microbatches, " microbatches in a batch"));
  }
  for (std::uint32_t m = 0; m < microbatches; ++m) {
    MicrobatchView microbatch;
    WS_ASSIGN_OR_RETURN(microbatch.max_seqlen, reader.I64());
    WS_ASSIGN_OR_RETURN(microbatch.real_tokens, reader.U64());
    WS_ASSIGN_OR_RETURN(microbatch.shape, ReadShape(reader));
    WS_ASSIGN_OR_RETURN(const std::uint8_t tensors, reader.U8());
    if (tensors > kMaxTensors) return reader.Corrupt(StrCat(tensors, " tensors in a microbatch"));
    for (std::uint8_t t = 0; t < tensors; ++t) {
      WS_ASSIGN_OR_RETURN(TensorView tensor, ReadTensor(reader, slab_bytes));
      microbatch.tensors.push_back(std::move(tensor));
    }
    view.microbatches.push_back(std::move(microbatch));
  }
  return view;
}

}  // namespace

std::string Encode(const Status& error) {
  WireWriter writer;
  writer.U8(static_cast<std::uint8_t>(error.code()));
  writer.Bytes(Cut(error.message(), kMaxErrorBytes));
  return writer.Take();
}

Status DecodeError(std::string_view body, Status* error) {
  WireReader reader(body, "error message");
  WS_ASSIGN_OR_RETURN(const std::uint8_t code, reader.U8());
  if (code == 0 || code > static_cast<std::uint8_t>(StatusCode::kInternal)) {
    return reader.Corrupt(StrCat("status code ", code, " is unknown"));
  }
  WS_ASSIGN_OR_RETURN(std::string message, ReadText(reader, kMaxErrorBytes));
  // Bytes may follow: a later version may say more.
  *error = Status(static_cast<StatusCode>(code), std::move(message));
  return Status::Ok();
}

std::string Encode(const Hello& hello) {
  WireWriter writer;
  writer.U32(hello.rank);
  writer.U32(hello.world);
  writer.Bytes(hello.job_hash);
  writer.Bytes(hello.launcher_id);
  writer.Bool(hello.fork);
  WriteOptional(writer, hello.begin_step);
  writer.Bytes(hello.state_json);
  const std::size_t keys = std::min<std::size_t>(hello.job_keys.size(), kMaxKeys);
  writer.U32(static_cast<std::uint32_t>(keys));
  for (std::size_t i = 0; i < keys; ++i) {
    writer.Bytes(Cut(hello.job_keys[i].first, kMaxNameBytes));
    writer.Bytes(Cut(hello.job_keys[i].second, kMaxNameBytes));
  }
  return writer.Take();
}

Result<Hello> DecodeHello(std::string_view body) {
  WireReader reader(body, "hello message");
  Hello hello;
  WS_ASSIGN_OR_RETURN(hello.rank, reader.U32());
  WS_ASSIGN_OR_RETURN(hello.world, reader.U32());
  WS_ASSIGN_OR_RETURN(hello.job_hash, ReadText(reader, kMaxNameBytes));
  WS_ASSIGN_OR_RETURN(hello.launcher_id, ReadText(reader, kMaxNameBytes));
  WS_ASSIGN_OR_RETURN(hello.fork, reader.Bool());
  WS_ASSIGN_OR_RETURN(hello.begin_step, ReadOptional(reader));
  WS_ASSIGN_OR_RETURN(hello.state_json, ReadText(reader, kMaxStateBytes));
  WS_ASSIGN_OR_RETURN(const std::uint32_t keys, reader.U32());
  if (keys > kMaxKeys) return reader.Corrupt(StrCat(keys, " keys of a job"));
  for (std::uint32_t i = 0; i < keys; ++i) {
    WS_ASSIGN_OR_RETURN(std::string path, ReadText(reader, kMaxNameBytes));
    WS_ASSIGN_OR_RETURN(std::string value, ReadText(reader, kMaxNameBytes));
    hello.job_keys.emplace_back(std::move(path), std::move(value));
  }
  WS_RETURN_IF_ERROR(reader.Finish());
  return hello;
}

std::string Encode(const WelcomeMessage& welcome) {
  WireWriter writer;
  writer.U32(static_cast<std::uint32_t>(welcome.host_pid));
  writer.Bytes(Cut(welcome.log_path, kMaxNameBytes));
  for (const std::uint32_t index : {welcome.dp, welcome.cp, welcome.tp, welcome.pp}) {
    writer.U32(index);
  }
  writer.Bool(welcome.fetches);
  writer.U32(welcome.leader);
  writer.U64(welcome.decisions);
  writer.Bytes(welcome.description_json);
  return writer.Take();
}

Result<WelcomeMessage> DecodeWelcome(std::string_view body) {
  WireReader reader(body, "welcome message");
  WelcomeMessage welcome;
  WS_ASSIGN_OR_RETURN(const std::uint32_t pid, reader.U32());
  welcome.host_pid = static_cast<std::int32_t>(pid);
  WS_ASSIGN_OR_RETURN(welcome.log_path, ReadText(reader, kMaxNameBytes));
  for (std::uint32_t* index : {&welcome.dp, &welcome.cp, &welcome.tp, &welcome.pp}) {
    WS_ASSIGN_OR_RETURN(*index, reader.U32());
  }
  WS_ASSIGN_OR_RETURN(welcome.fetches, reader.Bool());
  WS_ASSIGN_OR_RETURN(welcome.leader, reader.U32());
  WS_ASSIGN_OR_RETURN(welcome.decisions, reader.U64());
  WS_ASSIGN_OR_RETURN(welcome.description_json, ReadText(reader, kMaxFrameBodyBytes));
  WS_RETURN_IF_ERROR(reader.Finish());
  return welcome;
}

std::string Encode(const BatchMessage& batch) {
  WireWriter writer;
  writer.U64(batch.step);
  writer.U64(batch.slab_id);
  writer.U64(batch.slab_bytes);
  writer.Column(batch.gone);
  writer.U64(batch.real_tokens);
  writer.U64(batch.supervised_tokens);
  writer.Bytes(Cut(batch.digest, kMaxNameBytes));
  writer.Column(batch.costs);
  writer.Column(batch.tokens_by_source);
  writer.Column(batch.weights);
  WriteView(writer, batch.view);
  return writer.Take();
}

Result<BatchMessage> DecodeBatch(std::string_view body) {
  WireReader reader(body, "batch message");
  BatchMessage batch;
  WS_ASSIGN_OR_RETURN(batch.step, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.slab_id, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.slab_bytes, reader.U64());
  if (batch.slab_bytes == 0 || batch.slab_bytes > kMaxSlabBytes) {
    return reader.Corrupt(StrCat("a slab of ", batch.slab_bytes, " bytes"));
  }
  WS_ASSIGN_OR_RETURN(batch.gone, reader.Column<std::uint64_t>(kMaxColumn));
  WS_ASSIGN_OR_RETURN(batch.real_tokens, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.supervised_tokens, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.digest, ReadText(reader, kMaxNameBytes));
  WS_ASSIGN_OR_RETURN(batch.costs, reader.Column<double>(kMaxColumn));
  WS_ASSIGN_OR_RETURN(batch.tokens_by_source, reader.Column<std::uint64_t>(kMaxColumn));
  WS_ASSIGN_OR_RETURN(batch.weights, reader.Column<std::uint64_t>(kMaxColumn));
  WS_ASSIGN_OR_RETURN(batch.view, ReadView(reader, batch.slab_bytes));
  batch.view.step = batch.step;
  WS_RETURN_IF_ERROR(reader.Finish());
  return batch;
}

std::string Encode(const StateRequest& request) {
  WireWriter writer;
  WriteOptional(writer, request.step);
  return writer.Take();
}

Result<StateRequest> DecodeStateRequest(std::string_view body) {
  WireReader reader(body, "state request");
  StateRequest request;
  WS_ASSIGN_OR_RETURN(request.step, ReadOptional(reader));
  WS_RETURN_IF_ERROR(reader.Finish());
  return request;
}

std::string Encode(const DecideRequest& request) {
  return EncodeNumber(request.number) + widestream::Encode(request.decision);
}

Result<DecideRequest> DecodeDecide(std::string_view body) {
  DecideRequest request;
  constexpr std::size_t kNumberBytes = 8;
  WS_ASSIGN_OR_RETURN(request.number, DecodeNumber(body.substr(0, kNumberBytes)));
  WS_ASSIGN_OR_RETURN(request.decision, DecodeDecision(body.substr(kNumberBytes)));
  return request;
}

std::string Encode(const TextMessage& message) {
  WireWriter writer;
  writer.U64(message.size_bytes);
  return writer.Take() + message.text;
}

Result<TextMessage> DecodeText(std::string_view body, bool descriptor) {
  WireReader reader(body, "text message");
  TextMessage message;
  WS_ASSIGN_OR_RETURN(message.size_bytes, reader.U64());
  const std::uint64_t inline_bytes = descriptor ? 0 : message.size_bytes;
  if (reader.remaining_bytes() != inline_bytes) {
    return reader.Corrupt(
        StrCat("expected a text of ", inline_bytes, " bytes, found ", reader.remaining_bytes()));
  }
  if (message.size_bytes > kMaxTextBytes) {
    return Status::ResourceExhausted(
        StrCat("text message: ", message.size_bytes, " bytes exceed the limit of ", kMaxTextBytes));
  }
  message.text = body.substr(sizeof(std::uint64_t));
  return message;
}

std::string EncodeNumber(std::uint64_t number) {
  WireWriter writer;
  writer.U64(number);
  return writer.Take();
}

Result<std::uint64_t> DecodeNumber(std::string_view body) {
  WireReader reader(body, "number");
  WS_ASSIGN_OR_RETURN(const std::uint64_t number, reader.U64());
  WS_RETURN_IF_ERROR(reader.Finish());
  return number;
}

}  // namespace widestream::delivery
