// SPDX-License-Identifier: Apache-2.0
//
// Which registers an instruction writes. Internal to idempotency/.
#pragma once

#include "image/ptx_ir.h"

namespace gpurecover::idempotency {

inline bool writes_first_operand(image::ptx::Opcode op) {
  using image::ptx::Opcode;
  switch (op) {
    case Opcode::kUnknown:
    case Opcode::kApplypriority:
    case Opcode::kBra:
    case Opcode::kBrkpt:
    case Opcode::kBrx:
    case Opcode::kCall:
    case Opcode::kCp:
    case Opcode::kDiscard:
    case Opcode::kExit:
    case Opcode::kFence:
    case Opcode::kGriddepcontrol:
    case Opcode::kMembar:
    case Opcode::kNanosleep:
    case Opcode::kPmevent:
    case Opcode::kPrefetch:
    case Opcode::kPrefetchu:
    case Opcode::kRed:
    case Opcode::kRet:
    case Opcode::kSetmaxnreg:
    case Opcode::kSt:
    case Opcode::kStackrestore:
    case Opcode::kStmatrix:
    case Opcode::kSured:
    case Opcode::kSust:
    case Opcode::kTrap:
      return false;
    default:
      return true;
  }
}
// In these, the first operand may be a source or a destination: it is one that does not end the
// life of an older value.
inline bool may_not_write_first_operand(const image::ptx::Instruction& i) {
  using image::ptx::Opcode;
  switch (i.opcode) {
    case Opcode::kBar:
    case Opcode::kBarrier:
    case Opcode::kMbarrier:
    case Opcode::kMultimem:
    case Opcode::kTcgen05:
    case Opcode::kTensormap:
    case Opcode::kWgmma:
    case Opcode::kWmma:
    case Opcode::kClusterlaunchcontrol:
      return true;
    default:
      return i.has_unknown_modifier;
  }
}

// Operand indexes (in the pool) of the registers that `i` writes.
template <typename F>
void for_each_written(const image::ptx::Function& f, const image::ptx::Instruction& i, F&& visit) {
  using image::ptx::Operand;
  using image::ptx::OperandKind;
  if (!writes_first_operand(i.opcode) || i.operand_count == 0) {
    return;
  }
  const std::uint32_t first = i.first_operand;
  const Operand& o = f.operands[first];
  if (o.kind == OperandKind::kRegister) {
    visit(first, o);
  } else if (o.kind == OperandKind::kVector) {
    for (std::uint32_t k = 0; k < o.count; ++k) {
      if (f.operands[o.first + k].kind == OperandKind::kRegister) {
        visit(o.first + k, f.operands[o.first + k]);
      }
    }
  }
}

}  // namespace gpurecover::idempotency
