// The delivery protocol on hostile bytes: frames, and the body of every message, of both sides. The
// first byte chooses; what a decoder accepts must survive another round.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/deliver/frame.h"
#include "engine/deliver/messages.h"

namespace {

namespace delivery = widestream::delivery;

void Check(bool holds) {
  if (!holds) std::abort();
}

// The frames do not depend on how the bytes arrive in parts.
void Frames(std::string_view bytes, std::size_t part) {
  delivery::FrameBuffer whole;
  delivery::FrameBuffer parts;
  whole.Append(bytes);
  for (;;) {
    const auto frame = whole.Next();
    auto other = parts.Next();
    while (other.ok() && !other->has_value() && !bytes.empty()) {
      parts.Append(bytes.substr(0, part));
      bytes.remove_prefix(std::min(part, bytes.size()));
      other = parts.Next();
    }
    Check(frame.ok() == other.ok());
    if (!frame.ok()) return;
    Check(frame->has_value() == other->has_value());
    if (!frame->has_value()) return;
    Check((*frame)->body == (*other)->body && (*frame)->type == (*other)->type &&
          (*frame)->request == (*other)->request);
    Check((*frame)->body.size() <= delivery::kMaxFrameBodyBytes);
  }
}

void Batch(std::string_view body) {
  const auto batch = delivery::DecodeBatch(body);
  if (!batch.ok()) return;
  for (const auto& microbatch : batch->view.microbatches) {
    for (const auto& tensor : microbatch.tensors) {
      Check(tensor.offset_bytes <= batch->slab_bytes);
      Check(tensor.size_bytes() <= batch->slab_bytes - tensor.offset_bytes);
    }
  }
  Check(delivery::Encode(*batch) == body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 10) {
    case 0:
      Frames(body, 1 + data[0] / 10);
      break;
    case 1:
      Batch(body);
      break;
    case 2: {
      const auto hello = delivery::DecodeHello(body);
      if (hello.ok()) Check(delivery::Encode(*hello) == body);
      break;
    }
    case 3: {
      const auto welcome = delivery::DecodeWelcome(body);
      if (welcome.ok()) Check(delivery::Encode(*welcome) == body);
      break;
    }
    case 4: {
      const auto decide = delivery::DecodeDecide(body);
      if (decide.ok()) Check(delivery::Encode(*decide) == body);
      break;
    }
    case 5: {
      const auto state = delivery::DecodeStateRequest(body);
      if (state.ok()) Check(delivery::Encode(*state) == body);
      break;
    }
    case 6: {
      const auto text = delivery::DecodeText(body, false);
      if (text.ok()) Check(delivery::Encode(*text) == body);
      break;
    }
    case 7:
      static_cast<void>(delivery::DecodeText(body, true).ok());
      break;
    case 8: {
      const auto number = delivery::DecodeNumber(body);
      if (number.ok()) Check(delivery::EncodeNumber(*number) == body);
      break;
    }
    default: {
      widestream::Status error;
      const widestream::Status decoded = delivery::DecodeError(body, &error);
      Check(!decoded.ok() || !error.ok());
      break;
    }
  }
  return 0;
}
