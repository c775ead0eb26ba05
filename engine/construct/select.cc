// SelectFor: what one place has of a bucket.
#include <utility>

#include "engine/base/format_text.h"
#include "engine/construct/batch.h"

namespace widestream {
namespace {

bool Uses(const Place& place, Stages stages) {
  switch (stages) {
    case Stages::kEvery:
      return true;
    case Stages::kFirst:
      return place.first_stage || place.leads_pp;
    case Stages::kLast:
      return place.last_stage || place.leads_pp;
  }
  return false;
}

TensorView Slice(const TensorView& tensor, std::uint32_t slice) {
  TensorView out = tensor;
  out.offset_bytes += slice * tensor.stride_bytes;
  out.slices = 1;
  out.stride_bytes = 0;
  return out;
}

}  // namespace

BatchView SelectFor(const BatchView& bucket, const Place& place) {
  BatchView out;
  out.step = bucket.step;
  out.rank = bucket.rank;
  out.size_bytes = bucket.size_bytes;
  out.plan = bucket.plan;
  out.rule = bucket.rule;
  out.microbatches.reserve(bucket.microbatches.size());
  for (const MicrobatchView& microbatch : bucket.microbatches) {
    MicrobatchView selected;
    selected.max_seqlen = microbatch.max_seqlen;
    selected.real_tokens = microbatch.real_tokens;
    selected.shape = microbatch.shape;
    for (const TensorView& tensor : microbatch.tensors) {
      if (!Uses(place, tensor.stages)) continue;
      if (tensor.slices == 1) {
        selected.tensors.push_back(tensor);
        continue;
      }
      selected.tensors.push_back(Slice(tensor, place.cp));
      if (!place.leads_cp) continue;
      for (std::uint32_t c = 1; c < tensor.slices; ++c) {
        TensorView peer = Slice(tensor, c);
        peer.name = StrCat(tensor.name, "@", c);
        selected.tensors.push_back(std::move(peer));
      }
    }
    out.microbatches.push_back(std::move(selected));
  }
  return out;
}

}  // namespace widestream
