#include "engine/transform/normalizer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "engine/transform/nfc_tables.h"

namespace widestream::internal {
namespace {

constexpr std::uint32_t kFirstSyllable = 0xAC00;
constexpr std::uint32_t kSyllables = 11172;
constexpr std::uint32_t kFirstLead = 0x1100;
constexpr std::uint32_t kLeads = 19;
constexpr std::uint32_t kFirstVowel = 0x1161;
constexpr std::uint32_t kVowels = 21;
constexpr std::uint32_t kFirstTrail = 0x11A7;  // one before: no trail
constexpr std::uint32_t kTrails = 28;
constexpr std::uint32_t kBadByte = 0x80000000;  // plus the byte

std::uint16_t PropertiesOf(std::uint32_t code_point) {
  if (code_point >= 0x110000) return 0;
  return kNfcProperties[std::size_t{kNfcBlockIndex[code_point >> 6]} * 64 + (code_point & 63)];
}
unsigned CombiningClass(std::uint32_t code_point) { return PropertiesOf(code_point) & 0xFFU; }

// The code point at p, and its size; kBadByte and the byte for one that is not UTF-8.
std::uint32_t Decode(const char* p, const char* end, unsigned* size) {
  const auto byte = [p](unsigned i) -> std::uint32_t { return static_cast<unsigned char>(p[i]); };
  const std::uint32_t first = byte(0);
  *size = 1;
  if (first < 0x80) return first;
  const unsigned wanted = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4 || end - p < static_cast<std::ptrdiff_t>(wanted)) {
    return kBadByte | first;
  }
  std::uint32_t code_point = first & (0x7FU >> wanted);
  for (unsigned i = 1; i < wanted; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return kBadByte | first;
    code_point = (code_point << 6) | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code_point < kSmallest[wanted] || code_point > 0x10FFFF ||
      (code_point >= 0xD800 && code_point < 0xE000)) {
    return kBadByte | first;
  }
  *size = wanted;
  return code_point;
}

void Encode(std::uint32_t code_point, std::string* text) {
  const auto add = [text](std::uint32_t byte) { *text += static_cast<char>(byte); };
  if ((code_point & kBadByte) != 0) {
    add(code_point & 0xFF);
  } else if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | (code_point >> 6));
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | (code_point >> 12));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | (code_point >> 18));
    add(0x80 | ((code_point >> 12) & 0x3F));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

void Decompose(std::uint32_t code_point, std::vector<std::uint32_t>* parts) {
  const std::uint32_t syllable = code_point - kFirstSyllable;
  if (syllable < kSyllables) {
    parts->push_back(kFirstLead + syllable / (kVowels * kTrails));
    parts->push_back(kFirstVowel + syllable / kTrails % kVowels);
    if (syllable % kTrails != 0) parts->push_back(kFirstTrail + syllable % kTrails);
    return;
  }
  const NfcDecomposition* const end = kNfcDecompositions + kNfcDecompositionCount;
  const NfcDecomposition* const found = std::lower_bound(
      kNfcDecompositions, end, code_point,
      [](const NfcDecomposition& d, std::uint32_t wanted) { return d.code_point < wanted; });
  if (found == end || found->code_point != code_point) {
    parts->push_back(code_point);
    return;
  }
  parts->insert(parts->end(), kNfcParts + found->begin, kNfcParts + found->begin + found->count);
}

// 0 when the two do not compose.
std::uint32_t Compose(std::uint32_t first, std::uint32_t second) {
  if (first - kFirstLead < kLeads && second - kFirstVowel < kVowels) {
    return kFirstSyllable + ((first - kFirstLead) * kVowels + (second - kFirstVowel)) * kTrails;
  }
  if (first - kFirstSyllable < kSyllables && (first - kFirstSyllable) % kTrails == 0 &&
      second - kFirstTrail - 1 < kTrails - 1) {
    return first + (second - kFirstTrail);
  }
  const auto wanted = std::make_pair(first, second);
  const NfcComposition* const end = kNfcCompositions + kNfcCompositionCount;
  const NfcComposition* const found = std::lower_bound(
      kNfcCompositions, end, wanted, [](const NfcComposition& c, const auto& pair) {
        return std::make_pair(c.first, c.second) < pair;
      });
  if (found == end || std::make_pair(found->first, found->second) != wanted) return 0;
  return found->composite;
}

// The canonical algorithm (UAX 15) over the code points of a run.
void NormalizeRun(const std::vector<std::uint32_t>& run, std::vector<std::uint32_t>* result) {
  std::vector<std::uint32_t>& parts = *result;
  parts.clear();
  std::vector<std::uint64_t> keys;
  for (const std::uint32_t code_point : run) Decompose(code_point, &parts);
  for (auto begin = parts.begin(); begin != parts.end();) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, parts.end(), [](std::uint32_t c) { return CombiningClass(c) == 0; });
    // Stable by the index in the key: class, index (35 bits), code point (21 bits).
    keys.clear();
    for (auto it = begin; it != end; ++it) {
      keys.push_back((std::uint64_t{CombiningClass(*it)} << 56) |
                     (static_cast<std::uint64_t>(it - begin) << 21) | *it);
    }
    std::sort(keys.begin(), keys.end());
    std::transform(keys.begin(), keys.end(), begin,
                   [](std::uint64_t key) { return static_cast<std::uint32_t>(key & 0x1FFFFF); });
    begin = end;
  }
  constexpr std::size_t kNone = SIZE_MAX;
  std::size_t starter = kNone;
  std::size_t kept = 0;
  unsigned last_class = 0;
  for (const std::uint32_t code_point : std::vector<std::uint32_t>(parts)) {
    const unsigned combining = CombiningClass(code_point);
    // Blocked when something of the same or a higher class stands between it and the starter.
    const bool adjacent = starter != kNone && kept == starter + 1;
    if (starter != kNone && (adjacent || last_class < combining)) {
      if (const std::uint32_t composite = Compose(parts[starter], code_point)) {
        parts[starter] = composite;
        continue;
      }
    }
    if (combining == 0) starter = kept;
    last_class = combining;
    parts[kept++] = code_point;
  }
  parts.resize(kept);
}

}  // namespace

NormalizedText::NormalizedText(std::string_view text) : original_(text) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* p = begin;
  const char* copied = begin;      // what is before is in changed_, once anything is
  const char* previous = nullptr;  // the character before p, which may compose with the next
  std::vector<std::uint32_t> run;
  std::vector<std::uint32_t> normalized;
  while (p != end) {
    // Nothing below U+0300 (CC 80) changes by itself or by what is below it.
    while (end - p >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, p, 8);
      if ((word & (word << 1) & 0x8080808080808080ULL) != 0) break;
      p += 8;
      previous = nullptr;
    }
    while (p != end && static_cast<unsigned char>(*p) < 0xCC) {
      previous = nullptr;
      ++p;
      if ((reinterpret_cast<std::uintptr_t>(p) & 7) == 0) break;
    }
    if (p == end || static_cast<unsigned char>(*p) < 0xCC) continue;
    unsigned size = 0;
    if (PropertiesOf(Decode(p, end, &size)) == 0) {
      previous = p;
      p += size;
      continue;
    }
    // A run that may change: from the character before to the next that is left alone.
    const char* run_begin = p;
    if (previous != nullptr) {
      run_begin = previous;
    } else if (p != begin) {
      // One character back.
      run_begin = p - 1;
      while (run_begin != begin && p - run_begin < 4 &&
             (static_cast<unsigned char>(*run_begin) & 0xC0U) == 0x80) {
        --run_begin;
      }
      unsigned back = 0;
      (void)Decode(run_begin, end, &back);
      if (run_begin + back != p) run_begin = p - 1;
    }
    run.clear();
    const char* q = run_begin;
    while (q != end) {
      const std::uint32_t code_point = Decode(q, end, &size);
      if (q >= p && PropertiesOf(code_point) == 0) break;
      run.push_back(code_point);
      q += size;
    }
    NormalizeRun(run, &normalized);
    if (normalized != run) {
      changed_.append(copied, run_begin);
      const std::size_t normalized_begin = changed_.size();
      for (const std::uint32_t code_point : normalized) Encode(code_point, &changed_);
      runs_.push_back({static_cast<std::size_t>(run_begin - begin),
                       static_cast<std::size_t>(q - begin), normalized_begin, changed_.size()});
      copied = q;
    }
    p = q;
    previous = nullptr;
  }
  if (!runs_.empty()) changed_.append(copied, end);
}

}  // namespace widestream::internal
