// SPDX-License-Identifier: Apache-2.0
#include "image/sass/flow.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "image/sass/lift.h"

namespace gpurecover::image::sass {
namespace {

constexpr std::uint32_t kMaxDepth = 16;
constexpr std::size_t kMaxMarks = 64u << 20;

std::string at_offset(const std::string& why, std::uint32_t pc) {
  char text[48];
  std::snprintf(text, sizeof text, " (machine code offset 0x%x)", pc * 16);
  return why + text;
}

}  // namespace

Flow::Flow(const Code& code, const CubinKernel& kernel) : code_(code) {
  if (const auto it = code.sections.find(".text." + kernel.name); it != code.sections.end())
    text_ = code.elf.sections[it->second].data;
  size_ = static_cast<std::uint32_t>(std::min<std::size_t>(text_.size() / 16, 16u << 20));
  read_tables(kernel);
}

// Attribute 0x34 of .nv.info: for each indirect branch its offset, a zero, the number of targets,
// and these.
void Flow::read_tables(const CubinKernel& kernel) {
  constexpr std::uint8_t kTargets = 0x34, kWithPayload = 4;
  constexpr std::uint32_t kMaxTargets = 4096;
  const auto it = code_.sections.find(".nv.info." + kernel.name);
  if (it == code_.sections.end())
    return;
  const std::span<const std::byte> d = code_.elf.sections[it->second].data;
  for (std::size_t at = 0; at + 4 <= d.size();) {
    const auto format = static_cast<std::uint8_t>(d[at]);
    const auto attribute = static_cast<std::uint8_t>(d[at + 1]);
    const std::size_t length = format == kWithPayload ? load_at<std::uint16_t>(d, at + 2) : 0;
    at += 4;
    if (length > d.size() - at)
      return;
    const std::span<const std::byte> list = d.subspan(at, length);
    at += length;
    if (attribute != kTargets)
      continue;
    for (std::size_t k = 0; k + 12 <= list.size();) {
      const auto branch = load_at<std::uint32_t>(list, k);
      const auto count = load_at<std::uint32_t>(list, k + 8);
      k += 12;
      if (count > kMaxTargets || count * std::size_t{4} > list.size() - k)
        return;
      std::vector<std::uint32_t> targets;
      bool good = branch % 16 == 0 && count != 0;
      for (std::uint32_t t = 0; t < count; ++t, k += 4) {
        const auto to = load_at<std::uint32_t>(list, k);
        good &= to % 16 == 0 && to / 16 < size_;
        targets.push_back(to / 16);
      }
      if (good)
        tables_[branch / 16] = std::move(targets);
    }
  }
}

Word Flow::word(std::uint32_t pc) const {
  const std::size_t at = std::size_t{pc} * 16;
  return {load_at<std::uint64_t>(text_, at), load_at<std::uint64_t>(text_, at + 8)};
}

std::int64_t Flow::displacement(std::uint32_t pc) const {
  const Word w = word(pc);
  std::int64_t d = w.signed_bits(34, 48);
  if (code_.sm >= 90)
    d = static_cast<std::int64_t>((static_cast<std::uint64_t>(d) << 8) | w.bits(16, 8));
  return (std::int64_t{pc} + 1) * 16 + d * 4;
}

Flow::Step Flow::step(std::uint32_t pc) const {
  const Word w = word(pc);
  const std::uint32_t op = w.opcode();
  Step s;
  const bool guarded = w.bits(12, 4) != 7;
  const bool second = w.bits(87, 4) != 7;  // a further predicate
  auto refused = [&](const char* why) {
    s.kind = Step::kRefused;
    s.refusal = why;
    return s;
  };
  auto target = [&](std::int64_t to) {
    if (to < 0 || to % 16 != 0 || to / 16 >= size_)
      return false;
    s.target = static_cast<std::uint32_t>(to / 16);
    return true;
  };
  switch (op) {
    case 0x947:
    case 0x547: {
      if (!target(displacement(pc)))
        return refused("a branch out of the function");
      const auto mode = w.bits(32, 2);
      // Modes 2 and 3 ask whether the warp is together.
      s.in_doubt = mode >= 2;
      const bool conditional = guarded || second || op == 0x547 || s.in_doubt;
      s.kind = conditional ? Step::kBranch : Step::kJump;
      return s;
    }
    case 0x348:
      // WARPSYNC.COLLECTIVE: threads may go on behind the collective instruction.
      if (code_.sm >= 90 && w.bit(86)) {
        if (!target(displacement(pc)))
          return refused("a branch out of the function");
        s.kind = Step::kBranch;
        s.in_doubt = true;
      }
      return s;
    case 0x94d:
      s.kind = Step::kExit;
      s.conditional = guarded || second;
      return s;
    case 0x944:
      if (second)
        return refused("a call on a further condition");
      if (!target(displacement(pc)))
        return refused("a call out of the function");
      if (never_return_.contains(s.target)) {
        s.kind = guarded ? Step::kBranch : Step::kJump;
        return s;
      }
      s.kind = Step::kCall;
      s.conditional = guarded;
      return s;
    case 0x950:
      if (second)
        return refused("a return on a further condition");
      // Bits 84-86: relative or absolute.
      if (w.bit(85))
        return refused("a return to an absolute address");
      s.kind = Step::kReturn;
      s.conditional = guarded;
      return s;
    case 0x344:
    case 0x943:
      return refused("a call through a register or to an absolute address");
    case 0x949:
    case 0x958:
      if (guarded || second || tables_.find(pc) == tables_.end())
        return refused("an indirect branch");
      s.kind = Step::kTable;
      return s;
    case 0x94a:
    case 0x94b:
    case 0x94c:
    case 0x959:
      return refused("an indirect branch");
    default:
      return s;
  }
}

// Whether a return is reached from `entry`, calls on the way taken as returning. What this gets
// wrong is refused later: every return must lead back to its call.
bool Flow::returns(std::uint32_t entry) const {
  std::vector<bool> seen(size_, false);
  std::vector<std::uint32_t> open{entry};
  while (!open.empty()) {
    std::uint32_t pc = open.back();
    open.pop_back();
    for (; pc < size_ && !seen[pc]; ++pc) {
      seen[pc] = true;
      const Step s = step(pc);
      if (s.kind == Step::kReturn)
        return true;
      if (s.kind == Step::kBranch || s.kind == Step::kJump)
        open.push_back(s.target);
      if (s.kind == Step::kTable) {
        const auto& targets = tables_.at(pc);
        open.insert(open.end(), targets.begin(), targets.end());
      }
      if (s.kind == Step::kJump || s.kind == Step::kTable || s.kind == Step::kRefused ||
          (s.kind == Step::kExit && !s.conditional))
        break;
    }
  }
  return false;
}

void Flow::find_calls_that_are_jumps() {
  constexpr std::size_t kMaxTargets = 256;
  std::set<std::uint32_t> targets;
  for (std::uint32_t pc = 0; pc < size_; ++pc) {
    const Step s = step(pc);
    if (s.kind == Step::kCall)
      targets.insert(s.target);
  }
  if (targets.size() > kMaxTargets)
    return;
  std::set<std::uint32_t> found;
  for (const std::uint32_t t : targets) {
    if (!returns(t))
      found.insert(t);
  }
  never_return_ = std::move(found);
}

std::string Flow::visit(std::uint32_t context, std::uint32_t pc) {
  // Along one path, until it ends or meets what was reached before.
  auto lead = [&](std::uint32_t to) {
    if ((contexts_[context].marks[to] & 2) == 0) {
      contexts_[context].marks[to] |= 2;
      if ((contexts_[context].marks[to] & 1) == 0)
        pending_.emplace_back(context, to);
    }
  };
  for (;; ++pc) {
    if (pc >= size_)
      return "the code runs past its end";
    if ((contexts_[context].marks[pc] & 1) != 0) {
      contexts_[context].marks[pc] |= 2;
      return {};
    }
    contexts_[context].marks[pc] |= 1;
    if (++reached_ > kMaxInstructions)
      return "the kernel is too large to be analysed";
    const Word w = word(pc);
    if (w.opcode() == 0x941) {
      // A barrier of convergence leads on; what its BSSY names must be the next instruction.
      const std::size_t at = (std::size_t{pc} + 1) * 16 + w.bits(16, 4);
      if (at >= barrier_targets_.size() || !barrier_targets_[at])
        return at_offset("a convergence barrier of unknown form", pc);
    }
    const Step s = step(pc);
    switch (s.kind) {
      case Step::kFall:
        continue;
      case Step::kRefused:
        return at_offset(s.refusal, pc);
      case Step::kJump:
        lead(s.target);
        return {};
      case Step::kBranch:
        lead(s.target);
        break;
      case Step::kTable:
        for (const std::uint32_t to : tables_.at(pc))
          lead(to);
        return {};
      case Step::kExit:
        if (!s.conditional)
          return {};
        break;
      case Step::kReturn: {
        if (context == 0)
          return at_offset("a return from the kernel", pc);
        const std::uint32_t parent = contexts_[context].parent;
        const std::uint32_t to = contexts_[context].back_to;
        if (to >= size_)
          return "the code runs past its end";
        contexts_[parent].marks[to] |= 2;
        if ((contexts_[parent].marks[to] & 1) == 0)
          pending_.emplace_back(parent, to);
        if (!s.conditional)
          return {};
        break;
      }
      case Step::kCall: {
        for (std::uint32_t c = context; c != 0; c = contexts_[c].parent) {
          if (contexts_[c].entry == s.target)
            return at_offset("recursion", pc);
        }
        if (s.target == 0)
          return at_offset("recursion", pc);
        if (contexts_[context].depth >= kMaxDepth ||
            (contexts_.size() + 1) * std::size_t{size_} > kMaxMarks)
          return "the kernel is too large or too tangled to be analysed";
        Context inner;
        inner.parent = context;
        inner.back_to = pc + 1;
        inner.entry = s.target;
        inner.depth = contexts_[context].depth + 1;
        inner.marks.assign(size_, 0);
        inner.marks[s.target] = 2;
        const auto id = static_cast<std::uint32_t>(contexts_.size());
        contexts_.push_back(std::move(inner));
        calls_[{context, pc}] = id;
        pending_.emplace_back(id, s.target);
        if (!s.conditional)
          return {};
        break;
      }
    }
    if (pc + 1 >= size_)
      return "the code runs past its end";
    contexts_[context].marks[pc + 1] |= 2;
  }
}

std::string Flow::build(Graph& graph) {
  if (size_ == 0)
    return "its machine code is not in the module";
  barrier_targets_.assign(std::size_t{size_} * 16, false);
  for (std::uint32_t pc = 0; pc < size_; ++pc) {
    const Word w = word(pc);
    if (w.opcode() != 0x945)
      continue;
    const std::int64_t to = (std::int64_t{pc} + 1) * 16 + w.signed_bits(34, 30) * 4;
    if (to >= 0 && to % 16 == 0 && to / 16 < size_)
      barrier_targets_[static_cast<std::size_t>(to / 16) * 16 + w.bits(16, 4)] = true;
  }
  find_calls_that_are_jumps();
  contexts_.resize(1);
  contexts_[0].marks.assign(size_, 0);
  contexts_[0].marks[0] = 2;
  pending_.emplace_back(0, 0);
  while (!pending_.empty()) {
    const auto [context, pc] = pending_.back();
    pending_.pop_back();
    if ((contexts_[context].marks[pc] & 1) != 0)
      continue;
    if (std::string why = visit(context, pc); !why.empty())
      return why;
  }

  // Block 0 is an entry of its own, so that nothing leads back to it.
  graph.blocks.assign(1, Block{});
  graph.blocks[0].slots.resize(1);
  graph.blocks[0].lines.assign(1, 0);
  std::unordered_map<std::uint64_t, std::uint32_t> begins;
  auto key = [](std::uint32_t context, std::uint32_t pc) {
    return (std::uint64_t{context} << 32) | pc;
  };
  for (std::uint32_t c = 0; c < contexts_.size(); ++c) {
    const auto& marks = contexts_[c].marks;
    for (std::uint32_t pc = 0; pc < size_; ++pc) {
      if (marks[pc] != 3)
        continue;
      Block b;
      b.context = c;
      b.first = pc;
      b.last = pc + 1;
      while (b.last < size_ && marks[b.last] == 1)
        ++b.last;
      b.slots.resize(1);
      b.lines.assign(1, pc + 1);
      begins[key(c, pc)] = static_cast<std::uint32_t>(graph.blocks.size());
      graph.blocks.push_back(std::move(b));
    }
  }
  graph.blocks[0].next = begins.at(key(0, 0));
  // A block that exits on a condition leads to a block that only exits.
  auto exit_block = [&](std::uint32_t context) {
    Block b;
    b.context = context;
    b.end = End::kExit;
    b.slots.resize(1);
    b.lines.assign(1, 0);
    graph.blocks.push_back(std::move(b));
    return static_cast<std::uint32_t>(graph.blocks.size() - 1);
  };
  const auto count = static_cast<std::uint32_t>(graph.blocks.size());
  for (std::uint32_t i = 1; i < count; ++i) {
    const std::uint32_t c = graph.blocks[i].context, pc = graph.blocks[i].last - 1;
    const Step s = step(pc);
    End end = End::kNext;
    std::uint32_t target = kNoId, next = kNoId;
    auto block_at = [&](std::uint32_t context, std::uint32_t at) -> std::uint32_t {
      const auto it = begins.find(key(context, at));
      return it == begins.end() ? kNoId : it->second;
    };
    const bool conditional = s.kind == Step::kBranch || s.conditional;
    if (conditional || s.kind == Step::kFall) {
      next = block_at(c, pc + 1);
      if (next == kNoId)
        return "the flow of control is not understood";
    }
    switch (s.kind) {
      case Step::kFall:
      case Step::kRefused:
        break;
      case Step::kJump:
      case Step::kBranch:
        target = block_at(c, s.target);
        break;
      case Step::kExit:
        if (conditional) {
          target = exit_block(c);
        } else {
          end = End::kExit;
        }
        break;
      case Step::kTable: {
        // A chain of branches, each of which may be taken.
        std::uint32_t from = i;
        const auto& targets = tables_.at(pc);
        for (std::size_t k = 0; k < targets.size(); ++k) {
          const std::uint32_t to = block_at(c, targets[k]);
          if (to == kNoId)
            return "the flow of control is not understood";
          if (k + 1 == targets.size()) {
            graph.blocks[from].next = to;
            break;
          }
          const std::uint32_t link = exit_block(c);
          graph.blocks[link].end = End::kNext;
          graph.blocks[from].end = End::kBranch;
          graph.blocks[from].target = to;
          graph.blocks[from].next = link;
          from = link;
        }
        if (graph.blocks.size() > kMaxInstructions)
          return "the kernel is too large to be analysed";
        continue;
      }
      case Step::kCall: {
        const auto it = calls_.find({c, pc});
        if (it != calls_.end())
          target = block_at(it->second, s.target);
        break;
      }
      case Step::kReturn:
        returns_.push_back({pc, i, contexts_[c].back_to});
        target = block_at(contexts_[c].parent, contexts_[c].back_to);
        break;
    }
    if (end != End::kExit && s.kind != Step::kFall) {
      if (target == kNoId)
        return "the flow of control is not understood";
      if (conditional) {
        end = End::kBranch;
      } else {
        next = target;
        target = kNoId;
      }
    }
    Block& b = graph.blocks[i];
    b.end = end;
    b.target = target;
    b.next = next;
  }
  for (std::uint32_t i = 0; i < graph.blocks.size(); ++i) {
    const std::uint32_t target = graph.blocks[i].target, next = graph.blocks[i].next;
    if (next != kNoId)
      graph.blocks[next].predecessors.push_back(i);
    if (target != kNoId && target != next)
      graph.blocks[target].predecessors.push_back(i);
  }
  return {};
}

}  // namespace gpurecover::image::sass
