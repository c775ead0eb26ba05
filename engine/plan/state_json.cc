// The state document (docs/formats/state.md): StateToJson and StateFromJson of planner.h.
#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/plan/json_reader.h"
#include "engine/plan/layout.h"
#include "engine/plan/mixture.h"
#include "engine/plan/planner.h"

namespace widestream {
namespace {

using plan_json::JsonValue;
using plan_json::ParseJson;

constexpr std::uint64_t kStateVersion = 1;
constexpr std::size_t kMaxStateBytes = 256U << 20;
constexpr std::int64_t kMaxCredit = std::int64_t{1} << 62;
constexpr std::uint64_t kMax32 = UINT32_MAX;
constexpr std::size_t kPieceFields = 10;

std::string Quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Hex16(std::uint64_t number) {
  std::string digits(16, '0');
  for (int i = 15; i >= 0; --i) {
    digits[static_cast<std::size_t>(i)] = "0123456789abcdef"[number & 15];
    number >>= 4;
  }
  return digits;
}

std::string PieceText(const JobSpec& job, const Piece& piece) {
  return StrCat("[", Quote(job.sources[piece.source].name), ", ", piece.epoch, ", ", piece.position,
                ", ", piece.start, ", ", piece.length, ", ", piece.draw, ", ", piece.shard, ", ",
                piece.record, ", \"", Hex16(piece.ids_hash), "\", ", piece.last, "]");
}

std::string SourceText(const SourceState& source) {
  const RestartPoint& restart = source.restart;
  return StrCat("{\"manifest\": ", Quote(source.manifest), ", \"epoch\": ", source.epoch,
                ", \"position\": ", source.position, ", \"token\": ", source.token,
                ", \"credit\": ", source.credit, ", \"exhausted\": ", source.exhausted,
                ", \"examined\": ", source.examined, ", \"tokens\": ", source.tokens,
                ", \"rejected\": ", source.rejected, ", \"corrupt\": ", source.corrupt,
                ", \"held_out\": ", source.held_out, ", \"epoch_tokens\": ", source.epoch_tokens,
                ", \"restart\": {\"epoch\": ", restart.epoch, ", \"position\": ", restart.position,
                ", \"unit\": ", restart.unit, ", \"block\": ", restart.block,
                ", \"offset\": ", restart.offset, ", \"record\": ", restart.record, "}}");
}

std::string DecisionText(const JobSpec& job, const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kEdit: {
      // As an object where that loses nothing, so that people can read it.
      const auto parsed = nlohmann::json::parse(decision.mixture_json, nullptr, false);
      const bool plain = !parsed.is_discarded() && parsed.is_object() &&
                         parsed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) ==
                             decision.mixture_json;
      return StrCat("{\"kind\": \"edit\", \"step\": ", decision.step,
                    ", \"mixture\": ", plain ? decision.mixture_json : Quote(decision.mixture_json),
                    "}");
    }
    case Decision::Kind::kSkip:
      return StrCat("{\"kind\": \"skip\", \"step\": ", decision.step,
                    ", \"steps\": ", decision.steps, "}");
    case Decision::Kind::kQuarantine:
      return StrCat("{\"kind\": \"quarantine\", \"step\": ", decision.step,
                    ", \"source\": ", Quote(job.sources[decision.source].name),
                    ", \"epoch\": ", decision.epoch, ", \"position\": ", decision.position,
                    ", \"reason\": ", Quote(decision.reason), "}");
  }
  return "null";
}

// Joins lines with commas inside the given brackets.
std::string Lines(char open, const std::vector<std::string>& lines, char close) {
  std::string text(1, open);
  for (std::size_t i = 0; i < lines.size(); ++i)
    StrAppend(text, i == 0 ? "\n  " : ",\n  ", lines[i]);
  return text + (lines.empty() ? "" : "\n") + close;
}

class StateParser {
 public:
  explicit StateParser(const JobSpec& job) {
    for (std::uint32_t s = 0; s < job.sources.size(); ++s) {
      names_.push_back(job.sources[s].name);
      index_.emplace(job.sources[s].name, s);
    }
  }

  Result<StateDocument> Parse(const JsonValue& root);

 private:
  Status Header(const JsonValue& root, StateDocument& document);
  Status Schedule(const JsonValue& value, PlannerState& state);
  Status Sources(const JsonValue& value, PlannerState& state);
  Status Source(const JsonValue& value, SourceState& source);
  Status Pieces(const JsonValue& root, PlannerState& state);
  Result<Piece> OnePiece(const JsonValue& value);
  Status Decisions(const JsonValue& value, std::vector<Decision>& decisions);
  Result<Decision> OneDecision(const JsonValue& value);
  Result<std::uint32_t> SourceIndex(const JsonValue& value);

  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> index_;
};

// Reads an entry of an object into a field: an unsigned integer of the field's own width.
template <typename T>
Status Read(const JsonValue& object, std::string_view key, T* field) {
  WS_ASSIGN_OR_RETURN(const JsonValue value, object.At(key));
  constexpr std::uint64_t kMax = sizeof(T) == 4 ? kMax32 : UINT64_MAX;
  WS_ASSIGN_OR_RETURN(const std::uint64_t number, value.Unsigned(kMax));
  *field = static_cast<T>(number);
  return Status::Ok();
}

Status ReadBoolean(const JsonValue& object, std::string_view key, bool* field) {
  WS_ASSIGN_OR_RETURN(const JsonValue value, object.At(key));
  WS_ASSIGN_OR_RETURN(*field, value.Boolean());
  return Status::Ok();
}

Status ReadText(const JsonValue& object, std::string_view key, std::string* field) {
  WS_ASSIGN_OR_RETURN(const JsonValue value, object.At(key));
  WS_ASSIGN_OR_RETURN(*field, value.Text());
  return Status::Ok();
}

Status CheckVersion(const JsonValue& root, std::string_view key, std::uint64_t known) {
  std::uint64_t version = 0;
  WS_RETURN_IF_ERROR(Read(root, key, &version));
  if (version == known) return Status::Ok();
  return Status::InvalidArgument(StrCat("state: ", key, " is ", version, ", this release knows ",
                                        known, "; use the release that wrote the state"));
}

Status StateParser::Header(const JsonValue& root, StateDocument& document) {
  WS_RETURN_IF_ERROR(CheckVersion(root, "version", kStateVersion));
  WS_RETURN_IF_ERROR(root.OnlyKeys({"version", "order_version", "membership_version", "stream_hash",
                                    "stream_keys", "seed", "step", "tokens", "schedule", "sources",
                                    "carried", "closing", "decisions"}));
  WS_RETURN_IF_ERROR(CheckVersion(root, "order_version", kOrderVersion));
  WS_RETURN_IF_ERROR(CheckVersion(root, "membership_version", kMembershipVersion));
  WS_RETURN_IF_ERROR(ReadText(root, "stream_hash", &document.stream_hash));
  if (!document.stream_hash.empty() && !Hash128::FromHex(document.stream_hash).ok()) {
    return Status::InvalidArgument("state.stream_hash: expected 32 hexadecimal digits");
  }
  std::uint64_t seed = 0;  // for the reader's eyes; it is also one of the stream keys
  WS_RETURN_IF_ERROR(Read(root, "seed", &seed));
  WS_ASSIGN_OR_RETURN(const JsonValue keys, root.At("stream_keys"));
  WS_ASSIGN_OR_RETURN(const auto items, keys.Items());
  for (const JsonValue& item : items) {
    WS_ASSIGN_OR_RETURN(const auto pair, item.Items());
    if (pair.size() != 2) return item.Wrong("[key, value]");
    WS_ASSIGN_OR_RETURN(std::string key, pair[0].Text());
    WS_ASSIGN_OR_RETURN(std::string value, pair[1].Text(kMaxStateBytes));
    document.stream_keys.emplace_back(std::move(key), std::move(value));
  }
  return Status::Ok();
}

Result<std::uint32_t> StateParser::SourceIndex(const JsonValue& value) {
  WS_ASSIGN_OR_RETURN(const std::string name, value.Text());
  const auto found = index_.find(name);
  if (found == index_.end()) {
    return Status::InvalidArgument(StrCat(value.path(), ": the job has no source ", Quoted(name)));
  }
  return found->second;
}

Status StateParser::Schedule(const JsonValue& value, PlannerState& state) {
  WS_RETURN_IF_ERROR(value.OnlyKeys(
      {"draws", "drawn", "mixture_start", "stage", "base_weights", "ended", "open_source"}));
  WS_RETURN_IF_ERROR(Read(value, "draws", &state.draws));
  WS_RETURN_IF_ERROR(Read(value, "drawn", &state.drawn));
  WS_RETURN_IF_ERROR(Read(value, "mixture_start", &state.mixture_start));
  WS_RETURN_IF_ERROR(Read(value, "stage", &state.stage));
  WS_RETURN_IF_ERROR(ReadBoolean(value, "ended", &state.ended));
  if (state.mixture_start > state.drawn) {
    return Status::InvalidArgument(StrCat(value.path(), ".mixture_start: ", state.mixture_start,
                                          " exceeds `drawn`, ", state.drawn));
  }
  WS_ASSIGN_OR_RETURN(const JsonValue open, value.At("open_source"));
  if (!open.IsNull()) {
    WS_ASSIGN_OR_RETURN(const std::uint32_t source, SourceIndex(open));
    state.open_source = source;
    if (state.draws == 0) return open.Wrong("null before the first draw");
    if (state.sources[source].token == 0) return open.Wrong("a source with an open document");
  }
  WS_ASSIGN_OR_RETURN(const JsonValue weights, value.At("base_weights"));
  if (weights.IsNull()) return Status::Ok();
  state.base_weights.assign(names_.size(), 0);
  WS_ASSIGN_OR_RETURN(const auto entries, weights.Entries());
  std::uint64_t sum = 0;
  for (const auto& [name, weight] : entries) {
    const auto found = index_.find(name);
    if (found == index_.end())
      return weights.Wrong(StrCat("sources of the job, not ", Quoted(name)));
    WS_ASSIGN_OR_RETURN(const std::uint64_t number, weight.Unsigned(kWeightOne));
    state.base_weights[found->second] = number;
    sum += number;
  }
  if (sum != kWeightOne) return weights.Wrong("weights that add up to 2^32");
  return Status::Ok();
}

Status StateParser::Source(const JsonValue& value, SourceState& source) {
  WS_RETURN_IF_ERROR(
      value.OnlyKeys({"manifest", "epoch", "position", "token", "credit", "exhausted", "examined",
                      "tokens", "rejected", "corrupt", "held_out", "epoch_tokens", "restart"}));
  WS_RETURN_IF_ERROR(ReadText(value, "manifest", &source.manifest));
  WS_RETURN_IF_ERROR(Read(value, "epoch", &source.epoch));
  WS_RETURN_IF_ERROR(Read(value, "position", &source.position));
  WS_RETURN_IF_ERROR(Read(value, "token", &source.token));
  WS_ASSIGN_OR_RETURN(const JsonValue credit, value.At("credit"));
  WS_ASSIGN_OR_RETURN(source.credit, credit.Signed(-kMaxCredit, kMaxCredit));
  WS_RETURN_IF_ERROR(ReadBoolean(value, "exhausted", &source.exhausted));
  WS_RETURN_IF_ERROR(Read(value, "examined", &source.examined));
  WS_RETURN_IF_ERROR(Read(value, "tokens", &source.tokens));
  WS_RETURN_IF_ERROR(Read(value, "rejected", &source.rejected));
  WS_RETURN_IF_ERROR(Read(value, "corrupt", &source.corrupt));
  WS_RETURN_IF_ERROR(Read(value, "held_out", &source.held_out));
  WS_RETURN_IF_ERROR(Read(value, "epoch_tokens", &source.epoch_tokens));
  WS_ASSIGN_OR_RETURN(const JsonValue restart, value.At("restart"));
  WS_RETURN_IF_ERROR(restart.OnlyKeys({"epoch", "position", "unit", "block", "offset", "record"}));
  WS_RETURN_IF_ERROR(Read(restart, "epoch", &source.restart.epoch));
  WS_RETURN_IF_ERROR(Read(restart, "position", &source.restart.position));
  WS_RETURN_IF_ERROR(Read(restart, "unit", &source.restart.unit));
  WS_RETURN_IF_ERROR(Read(restart, "block", &source.restart.block));
  WS_RETURN_IF_ERROR(Read(restart, "offset", &source.restart.offset));
  WS_RETURN_IF_ERROR(Read(restart, "record", &source.restart.record));
  if (std::pair(source.restart.epoch, source.restart.position) >
      std::pair(source.epoch, source.position)) {
    return restart.Wrong("a block at or before the cursor");
  }
  return Status::Ok();
}

Status StateParser::Sources(const JsonValue& value, PlannerState& state) {
  WS_ASSIGN_OR_RETURN(const auto entries, value.Entries());
  state.sources.resize(names_.size());
  std::vector<bool> seen(names_.size(), false);
  std::string additional;
  for (const auto& [name, entry] : entries) {
    const auto found = index_.find(name);
    if (found == index_.end()) {
      StrAppend(additional, additional.empty() ? "" : ", ", Quoted(name));
      continue;
    }
    seen[found->second] = true;
    WS_RETURN_IF_ERROR(Source(entry, state.sources[found->second]));
  }
  std::string missing;
  for (std::size_t s = 0; s < names_.size(); ++s) {
    if (!seen[s]) StrAppend(missing, missing.empty() ? "" : ", ", Quoted(names_[s]));
  }
  if (additional.empty() && missing.empty()) return Status::Ok();
  std::string message = "state.sources does not match the job's sources:";
  if (!missing.empty()) StrAppend(message, " the state lacks ", missing, ";");
  if (!additional.empty()) StrAppend(message, " the job lacks ", additional, ";");
  return Status::InvalidArgument(message + " resume with the job that wrote the state");
}

Result<Piece> StateParser::OnePiece(const JsonValue& value) {
  WS_ASSIGN_OR_RETURN(const auto fields, value.Items());
  if (fields.size() != kPieceFields) {
    return value.Wrong(
        "[source, epoch, position, start, length, draw, shard, record, ids_hash, last]");
  }
  Piece piece;
  WS_ASSIGN_OR_RETURN(piece.source, SourceIndex(fields[0]));
  WS_ASSIGN_OR_RETURN(const std::uint64_t epoch, fields[1].Unsigned(kMax32));
  WS_ASSIGN_OR_RETURN(piece.position, fields[2].Unsigned());
  WS_ASSIGN_OR_RETURN(const std::uint64_t start, fields[3].Unsigned(kMax32));
  WS_ASSIGN_OR_RETURN(const std::uint64_t length, fields[4].Unsigned(kMaxSequenceLength));
  WS_ASSIGN_OR_RETURN(piece.draw, fields[5].Unsigned());
  WS_ASSIGN_OR_RETURN(const std::uint64_t shard, fields[6].Unsigned(kMax32));
  WS_ASSIGN_OR_RETURN(piece.record, fields[7].Unsigned());
  WS_ASSIGN_OR_RETURN(const std::string hash, fields[8].Text(16));
  WS_ASSIGN_OR_RETURN(piece.last, fields[9].Boolean());
  if (length == 0 || start + length > kMax32) return value.Wrong("a piece of at least one token");
  piece.epoch = static_cast<std::uint32_t>(epoch);
  piece.start = static_cast<std::uint32_t>(start);
  piece.length = static_cast<std::uint32_t>(length);
  piece.shard = static_cast<std::uint32_t>(shard);
  const char* end = hash.data() + hash.size();
  const auto read = std::from_chars(hash.data(), end, piece.ids_hash, 16);
  if (hash.size() != 16 || read.ec != std::errc() || read.ptr != end) {
    return fields[8].Wrong("16 hexadecimal digits");
  }
  return piece;
}

Status StateParser::Pieces(const JsonValue& root, PlannerState& state) {
  WS_ASSIGN_OR_RETURN(const JsonValue carried, root.At("carried"));
  WS_ASSIGN_OR_RETURN(const auto items, carried.Items());
  for (const JsonValue& item : items) {
    WS_ASSIGN_OR_RETURN(const Piece piece, OnePiece(item));
    state.carried.push_back(piece);
  }
  WS_ASSIGN_OR_RETURN(const JsonValue closing, root.At("closing"));
  if (!closing.IsNull()) {
    WS_ASSIGN_OR_RETURN(state.closing, OnePiece(closing));
  }
  const Piece* before = nullptr;
  const auto check = [&](const Piece& piece, const JsonValue& where) {
    if (piece.draw >= state.draws) return where.Wrong("a draw below schedule.draws");
    if (before != nullptr &&
        std::pair(piece.draw, piece.start) <= std::pair(before->draw, before->start)) {
      return where.Wrong("pieces in the order of their draws");
    }
    const SourceState& source = state.sources[piece.source];
    const std::pair end(piece.epoch, piece.position);
    const std::pair cursor(source.epoch, source.position);
    const bool read = end < cursor || (end == cursor && piece.start + piece.length <= source.token);
    if (!read) return where.Wrong("a piece before its source's cursor");
    before = &piece;
    return Status::Ok();
  };
  for (const Piece& piece : state.carried) WS_RETURN_IF_ERROR(check(piece, carried));
  if (state.closing) WS_RETURN_IF_ERROR(check(*state.closing, closing));
  return Status::Ok();
}

Result<Decision> StateParser::OneDecision(const JsonValue& value) {
  Decision decision;
  std::string kind;
  WS_RETURN_IF_ERROR(ReadText(value, "kind", &kind));
  WS_RETURN_IF_ERROR(Read(value, "step", &decision.step));
  if (kind == "edit") {
    decision.kind = Decision::Kind::kEdit;
    WS_RETURN_IF_ERROR(value.OnlyKeys({"kind", "step", "mixture"}));
    WS_ASSIGN_OR_RETURN(const JsonValue mixture, value.At("mixture"));
    if (mixture.raw().is_string()) {
      WS_ASSIGN_OR_RETURN(decision.mixture_json, mixture.Text(kMaxStateBytes));
    } else {
      decision.mixture_json = mixture.raw().dump();
    }
    auto spec = ParseMixture(decision.mixture_json, names_);
    if (!spec.ok()) return spec.status().WithContext(value.path());
    const Status resolved = ResolveMixture(*spec, names_.size(), /*is_edit=*/true).status();
    if (!resolved.ok()) return resolved.WithContext(value.path());
  } else if (kind == "skip") {
    decision.kind = Decision::Kind::kSkip;
    WS_RETURN_IF_ERROR(value.OnlyKeys({"kind", "step", "steps"}));
    WS_RETURN_IF_ERROR(Read(value, "steps", &decision.steps));
  } else if (kind == "quarantine") {
    decision.kind = Decision::Kind::kQuarantine;
    WS_RETURN_IF_ERROR(value.OnlyKeys({"kind", "step", "source", "epoch", "position", "reason"}));
    WS_ASSIGN_OR_RETURN(const JsonValue source, value.At("source"));
    WS_ASSIGN_OR_RETURN(decision.source, SourceIndex(source));
    WS_RETURN_IF_ERROR(Read(value, "epoch", &decision.epoch));
    WS_RETURN_IF_ERROR(Read(value, "position", &decision.position));
    WS_RETURN_IF_ERROR(ReadText(value, "reason", &decision.reason));
  } else {
    return value.Wrong("kind edit, skip or quarantine");
  }
  return decision;
}

Status StateParser::Decisions(const JsonValue& value, std::vector<Decision>& decisions) {
  WS_ASSIGN_OR_RETURN(const auto items, value.Items());
  for (const JsonValue& item : items) {
    WS_ASSIGN_OR_RETURN(Decision decision, OneDecision(item));
    if (!decisions.empty() && decision.step < decisions.back().step) {
      return item.Wrong("decisions in the order of their steps");
    }
    decisions.push_back(std::move(decision));
  }
  return Status::Ok();
}

Result<StateDocument> StateParser::Parse(const JsonValue& root) {
  StateDocument document;
  PlannerState& state = document.state;
  WS_RETURN_IF_ERROR(Header(root, document));
  WS_RETURN_IF_ERROR(Read(root, "step", &state.step));
  WS_RETURN_IF_ERROR(Read(root, "tokens", &state.real_tokens));
  WS_ASSIGN_OR_RETURN(const JsonValue sources, root.At("sources"));
  WS_RETURN_IF_ERROR(Sources(sources, state));
  WS_ASSIGN_OR_RETURN(const JsonValue schedule, root.At("schedule"));
  WS_RETURN_IF_ERROR(Schedule(schedule, state));
  WS_RETURN_IF_ERROR(Pieces(root, state));
  WS_ASSIGN_OR_RETURN(const JsonValue decisions, root.At("decisions"));
  WS_RETURN_IF_ERROR(Decisions(decisions, document.decisions));
  return document;
}

}  // namespace

std::string StateToJson(const JobSpec& job, const StateDocument& document) {
  const PlannerState& state = document.state;
  std::vector<std::string> keys;
  keys.reserve(document.stream_keys.size());
  for (const auto& [key, value] : document.stream_keys) {
    keys.push_back(StrCat("[", Quote(key), ", ", Quote(value), "]"));
  }
  std::vector<std::string> sources;
  sources.reserve(state.sources.size());
  for (std::size_t s = 0; s < state.sources.size(); ++s) {
    sources.push_back(StrCat(Quote(job.sources[s].name), ": ", SourceText(state.sources[s])));
  }
  std::vector<std::string> carried;
  carried.reserve(state.carried.size());
  for (const Piece& piece : state.carried) carried.push_back(PieceText(job, piece));
  std::vector<std::string> decisions;
  decisions.reserve(document.decisions.size());
  for (const Decision& decision : document.decisions) {
    decisions.push_back(DecisionText(job, decision));
  }
  std::string base = "null";
  if (!state.base_weights.empty()) {
    base = "{";
    for (std::size_t s = 0; s < state.base_weights.size(); ++s) {
      StrAppend(base, s == 0 ? "" : ", ", Quote(job.sources[s].name), ": ", state.base_weights[s]);
    }
    base += "}";
  }
  const std::string open =
      state.open_source < 0 ? std::string("null")
                            : Quote(job.sources[static_cast<std::size_t>(state.open_source)].name);
  return StrCat(
      "{\n\"version\": ", kStateVersion, ",\n\"order_version\": ", kOrderVersion,
      ",\n\"membership_version\": ", kMembershipVersion,
      ",\n\"stream_hash\": ", Quote(document.stream_hash),
      ",\n\"stream_keys\": ", Lines('[', keys, ']'), ",\n\"seed\": ", job.seed,
      ",\n\"step\": ", state.step, ",\n\"tokens\": ", state.real_tokens,
      ",\n\"schedule\": {\"draws\": ", state.draws, ", \"drawn\": ", state.drawn,
      ", \"mixture_start\": ", state.mixture_start, ", \"stage\": ", state.stage,
      ", \"base_weights\": ", base, ", \"ended\": ", state.ended, ", \"open_source\": ", open,
      "},\n\"sources\": ", Lines('{', sources, '}'), ",\n\"carried\": ", Lines('[', carried, ']'),
      ",\n\"closing\": ", state.closing ? PieceText(job, *state.closing) : std::string("null"),
      ",\n\"decisions\": ", Lines('[', decisions, ']'), "\n}\n");
}

Result<StateDocument> StateFromJson(const JobSpec& job, std::string_view json) {
  WS_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, "state", kMaxStateBytes));
  return StateParser(job).Parse(JsonValue(document, "state"));
}

}  // namespace widestream
