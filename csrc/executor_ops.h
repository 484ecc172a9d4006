// Ops as an executor keeps them: the arguments of their kernels, bound.
//
// Each has the name of its op in plan/ops. `rows` says how many rows a step has of what the op works
// on; without it they are the step's tokens, or what the kernel finds in the step.
#pragma once

#include <cstdint>
#include <variant>

#include "all_gather.h"
#include "kernels/adapters.h"
#include "kernels/argmax.h"
#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/elementwise.h"
#include "kernels/embed.h"
#include "kernels/experts.h"
#include "kernels/gated_norm.h"
#include "kernels/gemm.h"
#include "kernels/gemm_block.h"
#include "kernels/gemm_codebook.h"
#include "kernels/gemm_experts.h"
#include "kernels/gemm_grid.h"
#include "kernels/gemm_int.h"
#include "kernels/head_linear.h"
#include "kernels/kv_write.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rope_write.h"
#include "kernels/rounding.h"
#include "kernels/scan.h"
#include "kernels/select.h"
#include "kernels/turn.h"
#include "kernels/short_conv.h"
#include "kernels/state_conv.h"
#include "types.h"

namespace penstock {

// `logits` are the first of the `selected`.
enum class RowBase : uint8_t { tokens, selected, logits };

// What rows a buffer has: `times` for each of its base, one behind the other.
struct RowKind {
  RowBase base;
  int times = 1;

  static const RowKind tokens, selected, logits;
  bool operator==(const RowKind&) const = default;
};
inline constexpr RowKind RowKind::tokens{RowBase::tokens};
inline constexpr RowKind RowKind::selected{RowBase::selected};
inline constexpr RowKind RowKind::logits{RowBase::logits};

// A row for each of a token's `chosen` experts.
RowKind routed(RowKind rows, int64_t chosen);

using MatrixId = int;

// Every kind has packed_bytes(), linear(), linear_scratch_bytes() and linear_shared_bytes().
using AnyMatrix = std::variant<PackedMatrix, IntMatrix, GridMatrix, BlockMatrix, CodebookMatrix>;

struct EmbedOp {
  EmbedArgs args;
  const char* name() const { return "Embed"; }
};
struct BlockEmbedOp {
  BlockEmbedArgs args;
  const char* name() const { return "Embed"; }
};
struct IntEmbedOp {
  IntEmbedArgs args;
  const char* name() const { return "Embed"; }
};
struct AddPositionsOp {
  AddPositionsArgs args;
  const char* name() const { return "AddPositions"; }
};
struct AddNormOp {
  AddNormArgs args;
  RowKind rows;
  const char* name() const { return "AddNorm"; }
};
struct RmsNormOp {
  NormArgs args;
  RowKind rows;
  const char* name() const { return "RmsNorm"; }
};
struct LayerNormOp {
  NormArgs args;
  RowKind rows;
  const char* name() const { return "LayerNorm"; }
};
struct LinearOp {
  MatrixId matrix;
  AnyMatrix w;
  Array x, out;
  Gating gate;
  RowKind rows;
  const char* name() const { return "Linear"; }
};
struct HeadLinearOp {
  HeadLinearArgs args;
  RowKind rows;
  const char* name() const { return "HeadLinear"; }
};
struct RouteOp {
  RouteArgs args;
  RowKind rows;
  const char* name() const { return "Route"; }
};
struct ExpertLinearOp {
  AnyMatrix w;
  ExpertsArgs args;
  RowKind rows;  // tokens of the args
  const char* name() const { return "ExpertLinear"; }
};
struct ScaleRowsOp {
  ScaleRowsArgs args;
  RowKind rows;  // tokens of the args
  const char* name() const { return "ScaleRows"; }
};
struct CombineExpertsOp {
  CombineArgs args;
  RowKind rows;
  const char* name() const { return "CombineExperts"; }
};
struct HeadNormOp {
  HeadNormArgs args;
  RowKind rows;
  const char* name() const { return "HeadNorm"; }
};
struct RopeOp {
  RopeArgs args;
  const char* name() const { return "Rope"; }
};
struct KvWriteOp {
  KvWriteArgs args;
  const char* name() const { return "KvWrite"; }
};
struct RopeWriteOp {
  RopeWriteArgs args;
  const char* name() const { return "RopeWrite"; }
};
struct AttentionOp {
  AttentionArgs args;
  AttentionWork* work;
  const char* name() const { return "Attention"; }
};
struct StateConvOp {
  StateConvArgs args;
  const char* name() const { return "StateConv"; }
};
struct GatedDeltaOp {
  GatedDeltaArgs args;
  const char* name() const { return "GatedDelta"; }
};
struct SelectiveScanOp {
  SelectiveScanArgs args;
  const char* name() const { return "SelectiveScan"; }
};
struct GatedNormOp {
  GatedNormArgs args;
  RowKind rows;
  const char* name() const { return "GatedNorm"; }
};
struct ShortConvOp {
  ShortConvArgs args;
  const char* name() const { return "ShortConv"; }
};
struct SelectRowsOp {
  SelectRowsArgs args;
  const char* name() const { return "SelectRows"; }
};
struct ArgmaxOp {
  ArgmaxArgs args;
  RowKind rows;
  const char* name() const { return "Argmax"; }
};
struct FeaturesOp {
  FeaturesArgs args;
  const char* name() const { return "Features"; }
};
struct JoinOp {
  JoinArgs args;
  RowKind rows;
  const char* name() const { return "Join"; }
};
struct TurnRowsOp {
  TurnRowsArgs args;
  RowKind rows;
  const char* name() const { return "TurnRows"; }
};
struct TurnBackOp {
  TurnBackArgs args;
  RowKind rows;
  const char* name() const { return "TurnBack"; }
};
struct GatherColumnsOp {
  GatherArgs args;
  RowKind rows;
  const char* name() const { return "GatherColumns"; }
};
struct AddActivatedOp {
  AddActivatedArgs args;
  RowKind rows;
  const char* name() const {
    if (!args.x.data) return "Activate";
    return args.activation == Activation::none ? "Add" : "AddActivated";
  }
};
struct GateOp {
  GateArgs args;
  RowKind rows;
  const char* name() const { return "Gate"; }
};
struct ScaleOp {
  ScaleArgs args;
  RowKind rows;
  const char* name() const { return "Scale"; }
};
struct SoftCapOp {
  SoftCapArgs args;
  RowKind rows;
  const char* name() const { return "SoftCap"; }
};

struct XieluOp {
  XieluArgs args;
  RowKind rows;
  const char* name() const { return "Xielu"; }
};
struct ClampOp {
  ClampArgs args;
  RowKind rows;
  const char* name() const { return "Clamp"; }
};
struct AllGatherOp {
  AllGatherArgs args;
  RowKind rows;
  const char* name() const { return args.to_first ? "GatherToFirst" : "AllGather"; }
};
struct AdapterDownOp {
  AdapterDownArgs args;
  RowKind rows;
  const char* name() const { return "AdapterDown"; }
};
struct AdapterUpOp {
  AdapterUpArgs args;
  RowKind rows;
  const char* name() const { return "AdapterUp"; }
};
struct ScaleByPositionOp {
  ScaleByPositionArgs args;
  const char* name() const { return "ScaleByPosition"; }
};

using Op = std::variant<EmbedOp, BlockEmbedOp, IntEmbedOp, AddPositionsOp, AddNormOp, RmsNormOp, LayerNormOp, LinearOp, HeadNormOp, RopeOp,
                        KvWriteOp, RopeWriteOp, AttentionOp, ShortConvOp, SelectRowsOp, ArgmaxOp, FeaturesOp,
                         JoinOp, TurnRowsOp, TurnBackOp, GatherColumnsOp, AddActivatedOp, GateOp, ScaleOp, SoftCapOp, XieluOp, ClampOp,
                         ScaleByPositionOp, AllGatherOp, HeadLinearOp, RouteOp, ExpertLinearOp, ScaleRowsOp,
                         CombineExpertsOp, StateConvOp, GatedDeltaOp, SelectiveScanOp, GatedNormOp, AdapterDownOp,
                         AdapterUpOp>;

}  // namespace penstock
