// Unicode normalization form C, with the tables of the released tokenizers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace widestream::internal {

// Bytes [begin, end) of a text that became [normalized_begin, normalized_end).
struct ChangedRun {
  std::size_t begin;
  std::size_t end;
  std::size_t normalized_begin;
  std::size_t normalized_end;
};

// Text and where it came from. Bytes that are not UTF-8 stay as they are.
class NormalizedText {
 public:
  // Most text is normalized already; then nothing is copied and `text` must outlive this.
  explicit NormalizedText(std::string_view text);
  NormalizedText(const NormalizedText&) = delete;
  NormalizedText& operator=(const NormalizedText&) = delete;

  std::string_view text() const { return runs_.empty() ? original_ : changed_; }
  // In ascending order; empty when nothing changed.
  const std::vector<ChangedRun>& runs() const { return runs_; }

 private:
  std::string_view original_;
  std::string changed_;
  std::vector<ChangedRun> runs_;
};

}  // namespace widestream::internal
