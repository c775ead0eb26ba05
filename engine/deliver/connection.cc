#include "engine/deliver/connection.h"

#include <utility>

#include "engine/deliver/messages.h"

namespace widestream::delivery {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReadsAtOnce = 8;  // then the others have their turn

}  // namespace

Connection::Connection(std::uint64_t id, FileDescriptor socket, pid_t pid)
    : id_(id), socket_(std::move(socket)), pid_(pid), process_(WatchProcess(pid)) {}

void Connection::Send(MessageType type, std::uint32_t request, std::string_view body,
                      std::shared_ptr<Slab> slab, FileDescriptor text) {
  if (body.size() > kMaxFrameBodyBytes) {
    SendError(request,
              Status::ResourceExhausted("an answer of " + std::to_string(body.size()) +
                                        " bytes exceeds the limit of the delivery protocol, " +
                                        std::to_string(kMaxFrameBodyBytes)));
    return;
  }
  const bool descriptor = slab != nullptr || text.valid();
  Outgoing outgoing{EncodeFrame(type, request, body, descriptor ? 1 : 0), 0, std::move(slab),
                    std::move(text)};
  queued_bytes_ += outgoing.bytes.size();
  queue_.push_back(std::move(outgoing));
}

void Connection::SendError(std::uint32_t request, const Status& error) {
  Send(MessageType::kError, request, Encode(error));
}

bool Connection::Flush() {
  while (!queue_.empty()) {
    Outgoing& front = queue_.front();
    const bool first = front.sent_bytes == 0;
    int descriptor = -1;
    if (first && front.slab != nullptr) descriptor = front.slab->fd();
    if (first && front.text.valid()) descriptor = front.text.get();
    std::size_t sent = 0;
    switch (SendSome(socket_.get(), std::string_view(front.bytes).substr(front.sent_bytes),
                     descriptor, &sent)) {
      case SendOutcome::kWouldBlock:
        return true;
      case SendOutcome::kBroken:
        return false;
      case SendOutcome::kSent:
        break;
    }
    front.sent_bytes += sent;
    queued_bytes_ -= sent;
    if (front.sent_bytes == front.bytes.size()) queue_.pop_front();
  }
  return true;
}

bool Connection::Receive(bool drain) {
  char buffer[kReadBytes];
  for (int i = 0; drain || i < kReadsAtOnce; ++i) {
    // Clients send no descriptors; the kernel drops what comes.
    const Received received = ReceiveSome(socket_.get(), buffer, sizeof(buffer), nullptr);
    if (received.outcome == Received::Outcome::kWouldBlock) return true;
    if (received.outcome != Received::Outcome::kBytes) return false;
    frames_.Append({buffer, received.bytes});
    if (!drain && received.bytes < sizeof(buffer)) return true;
  }
  return true;
}

}  // namespace widestream::delivery
