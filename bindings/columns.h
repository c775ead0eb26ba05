// Columns of a step's pieces as numpy arrays, and layouts as nested lists.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine/plan/plan.h"

namespace widestream::python {

// source, epoch, position, start, length, draw, shard, record, ids_hash, last: 1-D arrays.
nanobind::dict PieceColumns(const std::vector<Piece>& pieces);
// For every rank, its microbatches, their rows, and the pieces of each row by index.
nanobind::list LayoutOf(const StepPlan& plan);

}  // namespace widestream::python
