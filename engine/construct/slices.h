// Where context ranks have the tokens of a microbatch. docs/batch.md.
#pragma once

#include <algorithm>
#include <cstdint>

namespace widestream {

// How a domain - a padded piece, a row, or a whole thd microbatch - is cut: into 2 * cp chunks of
// which rank r has chunk r and then chunk 2 * cp - 1 - r (zigzag: the causal work of all ranks is
// equal), or into cp chunks, one a rank.
struct SliceRule {
  std::int64_t cp = 1;
  bool zigzag = false;

  std::int64_t chunks() const { return cp == 1 ? 1 : zigzag ? 2 * cp : cp; }
};

// Calls fn(slice, offset, from, count) for each contiguous run of tokens [from, to) of a domain of
// `length` tokens (a multiple of rule.chunks()): token `from + i` is at `offset + i` of the slice,
// in which the domain begins at `base`. In the order of the tokens.
template <typename Function>
void ForEachRun(const SliceRule& rule, std::int64_t length, std::int64_t base, std::int64_t from,
                std::int64_t to, Function&& fn) {
  if (rule.cp == 1) {
    if (from < to) fn(std::int64_t{0}, base + from, from, to - from);
    return;
  }
  const std::int64_t chunk = length / rule.chunks();
  while (from < to) {
    const std::int64_t c = from / chunk;
    const std::int64_t end = std::min(to, (c + 1) * chunk);
    const bool second = c >= rule.cp;
    fn(second ? rule.chunks() - 1 - c : c, base + (second ? chunk : 0) + from - c * chunk, from,
       end - from);
    from = end;
  }
}

}  // namespace widestream
