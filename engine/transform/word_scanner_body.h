// The scanner for one instruction set; word_scanner.cc includes this file once for each, inside a
// namespace of its own, with WS_TARGET as the attribute of its functions and
//   Block: the bytes of a block, made by WS_TARGET Block Load(const char* p) from 64 bytes
//   WS_TARGET Masks Classify(const Block& block): masks of ASCII bytes, the rest in non_ascii
//   WS_TARGET std::size_t Emit(bits, base, ends): writes base + i for each bit i, returns how many
// (No #pragma once: on purpose.)

// The starts of words in a block whose bit 0 is one. Sets *scalar when the masks cannot tell.
template <Pattern kPattern>
WS_TARGET inline std::uint64_t StartsOfWords(const Masks& m, const char* p, const char* end,
                                             bool* scalar) {
  constexpr bool kCased = kPattern == Pattern::kO200k;
  const std::uint64_t space = m.space;
  const std::uint64_t letter = m.letter;
  std::uint64_t other = m.other;
  std::uint64_t starts = 1;
  std::uint64_t apostrophes = 0;
  if constexpr (kPattern == Pattern::kGpt2) {
    const std::uint64_t last = space & ~(space >> 1);
    const std::uint64_t changes =
        (letter & ~(letter << 1)) | (m.number & ~(m.number << 1)) | (other & ~(other << 1));
    starts |= (space & ~(space << 1)) | last | (changes & ~(m.blank << 1));
    apostrophes = m.apostrophe & starts;
    *scalar = (space & m.continuation) != 0;
  } else {
    // Line ends after a run of others belong to it, in o200k together with slashes. A run is
    // cleared from the first such line end on by letting a carry run through it; further ones in
    // the same run stop at a one that they add themselves.
    const std::uint64_t tail = m.line_end & (other << 1);
    std::uint64_t swallowed = 0;
    if (tail != 0) {
      const std::uint64_t run = kCased ? m.line_end | m.slash : m.line_end;
      swallowed = (run & ~(run + tail)) | tail;
      other &= ~swallowed;
    }
    const std::uint64_t white = space & ~swallowed;
    const std::uint64_t line_end = m.line_end & ~swallowed;
    const std::uint64_t gap = white & ~line_end;  // white space that is no line end
    const std::uint64_t after_line = (line_end << 1) & ~line_end;
    // A gap between two line ends is inside a word.
    *scalar = (((after_line & gap) + gap) & line_end & ~gap) != 0 || (space & m.continuation) != 0;
    const std::uint64_t last = gap & ~(space >> 1);
    starts |= (white & ~(white << 1)) | after_line | last | ((swallowed << 1) & ~swallowed);
    if constexpr (kPattern == Pattern::kQwen2) {
      starts |= m.number & ~m.continuation;
    } else {
      std::uint64_t third = m.number & ~(m.number << 1);
      const std::uint64_t inside = m.number & (m.number << 1) & (m.number << 2) & (m.number << 3);
      *scalar = *scalar || (m.number & m.continuation) != 0;
      while (third != 0) {
        starts |= third;
        third = (third << 3) & inside;
      }
    }
    // One other character before letters leads them, unless a blank leads it.
    const std::uint64_t first = other & ~(other << 1) & ~(m.blank << 1);
    const std::uint64_t rest = other & m.continuation;
    const std::uint64_t after_first = ((first << 1) + rest) & ~rest;
    starts |= other & ~(other << 1) & ~(m.blank << 1);
    starts |= letter & ~(letter << 1) & ~(gap << 1) & ~after_first;
    if constexpr (kCased) {
      starts |= m.upper & (m.lower << 1);
      // What follows decides where caseless letters before upper-case ones end, and whether a mark
      // after others is one of them.
      const std::uint64_t caseless = letter & ~(m.upper | m.lower);
      *scalar = *scalar || (m.upper & (caseless << 1)) != 0 || (m.mark & (other << 1)) != 0;
      apostrophes = m.apostrophe & (letter << 1);
    } else {
      apostrophes = m.apostrophe & starts;
    }
  }
  unsigned suffix_end = 0;
  while (apostrophes != 0) {
    const auto at = static_cast<unsigned>(std::countr_zero(apostrophes));
    apostrophes &= apostrophes - 1;
    if (kCased && at == suffix_end) continue;  // a word has one suffix at most
    const char* const stop =
        ContractionEnd < kPattern != Pattern::kGpt2 > (p + at, end - p > 64 ? p + 64 : end);
    if (stop == nullptr) continue;
    suffix_end = static_cast<unsigned>(stop - p);
    if (suffix_end >= 64) break;
    // Bits after `at` up to the end are cleared, in o200k that of the apostrophe too.
    const std::uint64_t below = (std::uint64_t{1} << suffix_end) - 1;
    const std::uint64_t kept = (std::uint64_t{kCased ? 1U : 2U} << at) - 1;
    starts = (starts & ~(below & ~kept)) | (std::uint64_t{1} << suffix_end);
  }
  return starts;
}

// Words one by one, until they have passed the block or `ends` is full.
template <Pattern kPattern>
WS_TARGET inline std::size_t ScanScalar(const char* base, const char* p, const char* end,
                                        std::uint32_t* ends, std::size_t most) {
  const char* const stop = end - p > 48 ? p + 48 : end;
  std::size_t count = 0;
  while (p < stop && count < most) {
    p = WordEnd(kPattern, p, end);
    ends[count++] = static_cast<std::uint32_t>(p - base);
  }
  return count;
}

template <Pattern kPattern>
WS_TARGET std::size_t ScanWords(const char* p, const char* end, std::uint32_t* ends,
                                std::size_t capacity) {
  constexpr bool kCased = kPattern == Pattern::kO200k;
  const char* const base = p;
  std::size_t count = 0;
  while (end - p >= 64 && count < capacity) {
    Masks masks = Classify(Load(p));
    if (masks.non_ascii != 0) ClassifyNonAscii<kCased>(p, end, &masks);
    bool scalar = false;
    std::uint64_t starts = StartsOfWords<kPattern>(masks, p, end, &scalar);
    // A start is sure when the block shows what it depends on: two bytes behind it and white space
    // to its end.
    std::uint64_t sure = (std::uint64_t{1} << 61) - 1;
    if ((masks.space >> 63) != 0) {
      const int run = std::countl_one(masks.space);
      sure &= run > 63 ? 1 : (std::uint64_t{2} << (64 - run)) - 1;
    }
    starts &= sure & ~std::uint64_t{1};
    if (scalar || starts == 0) {
      // Most often one long word.
      count += ScanScalar<kPattern>(base, p, end, ends + count, scalar ? capacity - count : 1);
    } else {
      count += Emit(starts, static_cast<std::uint32_t>(p - base), ends + count);
    }
    p = base + ends[count - 1];
  }
  if (p != end && count < capacity) {
    // The rest, in a block that is filled up with blanks.
    const auto size = static_cast<unsigned>(end - p);
    char block[64];
    std::memset(block, ' ', sizeof(block));
    std::memcpy(block, p, size);
    Masks masks = Classify(Load(block));
    if (masks.non_ascii != 0) ClassifyNonAscii<kCased>(block, block + size, &masks);
    bool scalar = false;
    std::uint64_t starts = StartsOfWords<kPattern>(masks, block, block + size, &scalar);
    std::uint64_t sure = (std::uint64_t{1} << size) - 1;
    const auto white = static_cast<unsigned>(std::countl_one(masks.space << (64 - size)));
    if (white != 0) sure &= (std::uint64_t{2} << (size - white)) - 1;
    starts &= sure & ~std::uint64_t{1};
    if (!scalar) {
      if (starts != 0) count += Emit(starts, static_cast<std::uint32_t>(p - base), ends + count);
      if (white == 0) {
        ends[count++] = static_cast<std::uint32_t>(end - base);
        return std::min(count, capacity);
      }
      if (count != 0) p = base + ends[count - 1];
    }
    while (p != end && count < capacity) {
      p = WordEnd(kPattern, p, end);
      ends[count++] = static_cast<std::uint32_t>(p - base);
    }
  }
  return std::min(count, capacity);
}
