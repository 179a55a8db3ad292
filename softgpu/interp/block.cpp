// SPDX-License-Identifier: Apache-2.0
// Divergence: lanes that part at a branch become groups and meet again at the branch's immediate
// post-dominator (a Join). Groups take turns, and lanes that have waited long enough at a Join go
// on without the rest: a lane that waits for another lane of its warp, on either side of a branch,
// gets what it waits for.
#include "softgpu/interp/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <new>

namespace gpurecover::softgpu::interp {
namespace {

constexpr uint64_t kGroupQuantum = 256;
constexpr uint64_t kWarpQuantum = 2048;
constexpr uint64_t kJoinPatience = 1u << 14;
constexpr uint32_t kMaxDepth = 4096;
constexpr uint64_t kMaxString = 1u << 16;
// What an H200 answers to a call of an address that is no function.
constexpr int kIllegalInstruction = 715;
constexpr size_t kAlign = 64;

std::byte* Allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, kAlign);
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlign}));
}
void Release(std::byte* p) {
  if (p)
    ::operator delete (p, std::align_val_t{kAlign});
}

}  // namespace

Block::Block(LaunchShared& launch) : launch_(launch) {
  const LaunchRequest& r = *launch.request;
  root_bytes_ = launch.kernel->functions[0].register_bytes;
  local_per_warp_ = uint64_t{launch.kernel->stack_bytes} * kLanes;
  registers_ = Allocate(size_t{root_bytes_} * launch.warps);
  shared_ = Allocate(launch.shared_bytes);
  local_ = Allocate(local_per_warp_ * launch.warps);
  warps_.resize(launch.warps);
  for (uint32_t k = 0; k < launch.warps; ++k) {
    Warp& w = warps_[k];
    w.id = k;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t t = k * kLanes + lane;
      w.tid[0][lane] = t % r.block.x;
      w.tid[1][lane] = t / r.block.x % r.block.y;
      w.tid[2][lane] = t / r.block.x / r.block.y;
    }
  }
  ctx_.memory = r.memory;
  ctx_.shared = shared_;
  ctx_.shared_bytes = launch.shared_bytes;
  ctx_.local_bytes = launch.kernel->stack_bytes;
  ctx_.params = reinterpret_cast<const std::byte*>(r.parameters.data());
  ctx_.param_bytes = static_cast<uint32_t>(r.parameters.size());
  ctx_.warps = launch.warps;
  ctx_.ntid = r.block;
  ctx_.nctaid = r.grid;
  ctx_.dynamic_shared = r.dynamic_shared_bytes;
  ctx_.grid_id = launch.grid_id;
  ctx_.sm_count = 16;
  ctx_.envreg = launch.envreg;
}

Block::~Block() {
  for (auto& f : frame_pool_)
    if (f->registers)
      Release(f->registers);
  Release(registers_);
  Release(shared_);
  Release(local_);
}

void Block::Start(uint64_t linear) {
  const LaunchRequest& r = *launch_.request;
  linear_ = linear;
  // What a device leaves in registers and memory is not defined; zeros make every run the same.
  std::memset(registers_, 0, size_t{root_bytes_} * launch_.warps);
  std::memset(shared_, 0, launch_.shared_bytes);
  std::memset(local_, 0, local_per_warp_ * launch_.warps);
  ctx_.block_linear = static_cast<uint32_t>(linear);
  ctx_.ctaid = {static_cast<uint32_t>(linear % r.grid.x),
                static_cast<uint32_t>(linear / r.grid.x % r.grid.y),
                static_cast<uint32_t>(linear / r.grid.x / r.grid.y)};
  live_threads_ = launch_.threads;
  live_warps_ = launch_.warps;
  first_warp_ = static_cast<uint32_t>(r.seed % launch_.warps);
  barriers_.fill({});
  for (Warp& w : warps_) {
    const uint32_t threads = std::min(kLanes, launch_.threads - w.id * kLanes);
    w.live = threads == kLanes ? kFull : (1u << threads) - 1;
    w.turn = 0;
    w.clock = 0;
    w.waiting_joins = 0;
    w.joins.clear();
    std::fill(std::begin(w.count), std::end(w.count), 0);
    w.root = {};
    w.root.code = &launch_.kernel->functions[0];
    w.root.registers = registers_ + size_t{root_bytes_} * w.id;
    w.root.live = w.live;
    w.poll_op = nullptr;
    w.last_address = 0;
    w.groups.clear();
    Group g;
    g.pc = w.root.code->ops.data();
    g.mask = w.live;
    g.frame = &w.root;
    w.groups.push_back(g);
  }
  traced_warp_ = kNone;
  flip_ = nullptr;
  if (r.fault && r.fault->block == linear && r.fault->thread < launch_.threads) {
    traced_warp_ = r.fault->thread / kLanes;
    traced_lane_ = r.fault->thread % kLanes;
    traced_at_ = r.fault->instruction;
  }
}

// ---- Joins ----

Join* Block::NewJoin(Warp& w, const Op* pc, Frame* frame, uint32_t pending, Join* parent) {
  if (free_joins_.empty()) {
    join_pool_.push_back(std::make_unique<Join>());
    free_joins_.push_back(join_pool_.back().get());
  }
  Join* j = free_joins_.back();
  free_joins_.pop_back();
  *j = {pc, frame, parent, pending, 0, 0};
  w.joins.push_back(j);
  return j;
}

void Block::FreeJoin(Warp& w, Join* j) {
  if (j->arrived)
    --w.waiting_joins;
  w.joins.erase(std::find(w.joins.begin(), w.joins.end(), j));
  free_joins_.push_back(j);
}

bool Block::Arrive(Warp& w, Group& g, uint32_t lanes) {
  Join* j = g.join;
  if (!j->arrived) {
    j->since = w.clock;
    ++w.waiting_joins;
  }
  j->arrived |= lanes;
  if (j->arrived != j->pending)
    return false;
  g.mask = j->arrived;
  g.pc = j->pc;
  g.frame = j->frame;
  g.join = j->parent;
  FreeJoin(w, j);
  return true;
}

// Lanes leave `from` and what encloses it (up to the end of frame `only`, if given). A join that
// waited for nobody else lets its lanes go.
void Block::Detach(Warp& w, Join* from, uint32_t lanes, const Frame* only) {
  for (Join* j = from; j && (!only || j->frame == only);) {
    Join* parent = j->parent;
    j->pending &= ~lanes;
    if (j->pending == j->arrived) {
      if (j->arrived) {
        Group g;
        g.pc = j->pc;
        g.mask = j->arrived;
        g.frame = j->frame;
        g.join = parent;
        w.groups.push_back(g);
      }
      FreeJoin(w, j);
    }
    j = parent;
  }
}

bool Block::ReleaseJoin(Warp& w, uint64_t older_than) {
  bool any = false;
  for (size_t k = w.joins.size(); k-- > 0;) {
    Join* j = w.joins[k];
    if (!j->arrived || w.clock - j->since < older_than)
      continue;
    Group g;
    g.pc = j->pc;
    g.mask = j->arrived;
    g.frame = j->frame;
    g.join = j->parent;
    w.groups.push_back(g);
    j->pending &= ~j->arrived;
    if (!j->pending) {
      FreeJoin(w, j);
    } else {
      j->arrived = 0;
      --w.waiting_joins;
    }
    any = true;
    if (older_than == 0)
      break;
  }
  return any;
}

// ---- Frames ----

Frame* Block::NewFrame(uint32_t function) {
  const FunctionCode& code = launch_.kernel->functions[function];
  Frame* f = nullptr;
  for (size_t k = free_frames_.size(); k-- > 0;)
    if (free_frames_[k]->function == function) {
      f = free_frames_[k];
      free_frames_.erase(free_frames_.begin() + static_cast<ptrdiff_t>(k));
      break;
    }
  if (!f) {
    frame_pool_.push_back(std::make_unique<Frame>());
    f = frame_pool_.back().get();
    f->registers = Allocate(code.register_bytes);
  }
  std::byte* registers = f->registers;
  *f = {};
  f->function = function;
  f->code = &code;
  f->registers = registers;
  std::memset(registers, 0, code.register_bytes);
  return f;
}
void Block::FreeFrame(Frame* f) {
  free_frames_.push_back(f);
}

std::byte* Block::Local(uint32_t lane, uint64_t offset, uint32_t bytes) {
  if (offset > ctx_.local_bytes || bytes > ctx_.local_bytes - offset)
    return nullptr;
  return ctx_.local + ctx_.local_bytes * lane + offset;
}

void Block::SetFrame(const Frame& f) {
  ctx_.base[0] = f.registers;
  // Never written: handlers write through base[0] only.
  ctx_.base[1] = const_cast<std::byte*>(
      launch_.constants[static_cast<size_t>(f.code - launch_.kernel->functions.data())]);
  ctx_.extra = f.code->extra.data();
  ctx_.frame_local = f.local;
}

void Block::Enter(Warp& w, const Group& g) {
  SetFrame(*g.frame);
  ctx_.active = g.mask;
  ctx_.join_op = g.join && g.join->frame == g.frame ? g.join->pc : nullptr;
  ctx_.local = local_ + local_per_warp_ * w.id;
  ctx_.tid = w.tid;
  ctx_.warp_id = w.id;
}

void Block::Count(Warp& w, uint32_t mask, uint64_t& segment) {
  if (!segment)
    return;
  if (mask == kFull)
    for (uint32_t i = 0; i < kLanes; ++i)
      w.count[i] += segment;
  else
    for (uint32_t m = mask; m; m &= m - 1)
      w.count[std::countr_zero(m)] += segment;
  thread_instructions_ += segment * static_cast<uint64_t>(std::popcount(mask));
  segment = 0;
}

void Block::SetFault(Warp& w, const Group& g, const Op& op, uint32_t lane, uint64_t segment,
                     int code, std::string what) {
  fault_ = {};
  fault_.code = code;
  fault_.thread = w.id * kLanes + lane;
  fault_.instruction = w.count[lane] + segment;
  fault_.what = std::move(what);
  const FunctionCode& f = *g.frame->code;
  fault_.location = "line " + std::to_string(f.lines[op.source]);
  if (f.texts[op.source] != kNone)
    fault_.location += ": " + launch_.program->texts_[f.texts[op.source]];
  if (g.frame->depth)
    fault_.location += " in " + f.name;
}

// ---- Calls ----

// Everything that `g` does happens at its `pc`; on success g.pc is where to go on.
bool Block::Call(Warp& w, Group& g, const CallSite& site, const Op* pc) {
  uint32_t callee = site.callee;
  if (callee == kNone) {
    const uint64_t* target = Src<uint64_t>(ctx_, site.target);
    const uint64_t value = target[std::countr_zero(g.mask)];
    uint32_t same = 0;
    for (uint32_t m = g.mask; m; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
      if (target[i] == value)
        same |= 1u << i;
    }
    const uint64_t index = (value - kFunctionWindow) / kFunctionStep - 1;
    if (value < kFunctionWindow + kFunctionStep || (value % kFunctionStep) ||
        index >= launch_.kernel->by_module_index.size() ||
        launch_.kernel->by_module_index[index] == kNone) {
      SetFault(w, g, *pc, static_cast<uint32_t>(std::countr_zero(g.mask)), 0, kIllegalInstruction,
               "call of an address that is no function");
      return false;
    }
    callee = launch_.kernel->by_module_index[index];
    if (same != g.mask) {  // the others call later
      Group other = g;
      other.mask = g.mask & ~same;
      other.pc = pc;
      g.mask = same;
      w.groups.push_back(other);
    }
  }
  const FunctionCode& code = launch_.kernel->functions[callee];
  Frame* from = g.frame;
  const uint32_t first = static_cast<uint32_t>(std::countr_zero(g.mask));
  const uint64_t local = from->local + from->code->local_bytes;
  if (from->depth + 1 > kMaxDepth || local + code.local_bytes > ctx_.local_bytes) {
    SetFault(w, g, *pc, first, 0, kIllegalAddress, "stack overflow");
    return false;
  }
  if (site.args.size() != code.params.size() || site.returns.size() > code.returns.size()) {
    SetFault(w, g, *pc, first, 0, kIllegalInstruction, "call of a function with other parameters");
    return false;
  }
  Frame* f = NewFrame(callee);
  f->local = local;
  f->call = &site;
  f->caller = from;
  f->return_to = pc + 1;
  f->live = g.mask;
  f->depth = from->depth + 1;
  for (size_t k = 0; k < site.args.size(); ++k) {
    const CallValue &a = site.args[k], &p = code.params[k];
    const uint32_t bytes = std::min(a.bytes, p.bytes);
    const std::byte* registers = a.in_memory ? nullptr : Src<std::byte>(ctx_, a.offset);
    for (uint32_t m = g.mask; m; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
      const std::byte* s =
          a.in_memory ? Local(i, from->local + a.offset, bytes) : registers + i * a.bytes;
      std::byte* d =
          p.in_memory ? Local(i, local + p.offset, bytes) : f->registers + p.offset + i * p.bytes;
      if (s && d)
        std::memmove(d, s, bytes);
    }
  }
  g.frame = f;
  g.pc = code.ops.data();
  return true;
}

void Block::Return(Warp& w, Group& g) {
  Frame* f = g.frame;
  // Only lanes that left a join early still have one of this frame.
  if (g.join && g.join->frame == f) {
    Join* outer = g.join;
    while (outer && outer->frame == f)
      outer = outer->parent;
    Detach(w, g.join, g.mask, f);
    g.join = outer;
  }
  Frame* to = f->caller;
  const CallSite& site = *f->call;
  for (size_t k = 0; k < site.returns.size(); ++k) {
    const CallValue &d = site.returns[k], &s = f->code->returns[k];
    const uint32_t bytes = std::min(d.bytes, s.bytes);
    for (uint32_t m = g.mask; m && bytes; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
      const std::byte* from = s.in_memory ? Local(i, f->local + s.offset, bytes)
                                          : f->registers + s.offset + i * s.bytes;
      std::byte* at = d.in_memory ? Local(i, to->local + d.offset, bytes)
                                  : to->registers + d.offset + i * d.bytes;
      if (from && at)
        std::memmove(at, from, bytes);
    }
  }
  g.frame = to;
  g.pc = f->return_to;
  f->live &= ~g.mask;
  if (!f->live)
    FreeFrame(f);
}

// Lanes end. The group that they belonged to must have lost them already.
void Block::Exit(Warp& w, Frame* frame, Join* join, uint32_t lanes) {
  w.live &= ~lanes;
  Detach(w, join, lanes, nullptr);
  for (Frame* f = frame; f && f->caller;) {
    Frame* caller = f->caller;
    f->live &= ~lanes;
    if (!f->live)
      FreeFrame(f);
    f = caller;
  }
  live_threads_ -= static_cast<uint32_t>(std::popcount(lanes));
  if (!w.live)
    --live_warps_;
  RecheckSyncs(w);
  RecheckBarriers();
}

// ---- Barriers ----

void Block::ReleaseBarrier(uint32_t id) {
  const BarrierState state = barriers_[id];
  barriers_[id] = {};
  for (Warp& w : warps_)
    for (Group& g : w.groups) {
      if (g.state != GroupState::kBarrier || g.barrier != id)
        continue;
      g.state = GroupState::kRun;
      const BarrierSite& site = *g.barrier_site;
      if (site.kind == BarrierKind::kRedPopc) {
        uint32_t* d = reinterpret_cast<uint32_t*>(g.frame->registers + site.d);
        for (uint32_t m = g.mask; m; m &= m - 1)
          d[std::countr_zero(m)] = state.popc;
      } else if (site.kind == BarrierKind::kRedAnd || site.kind == BarrierKind::kRedOr) {
        uint32_t* d = reinterpret_cast<uint32_t*>(g.frame->registers + site.d);
        const bool yes = site.kind == BarrierKind::kRedAnd ? state.all : state.any;
        *d = (*d & ~g.mask) | (yes ? g.mask : 0);
      }
    }
}

void Block::RecheckBarriers() {
  for (uint32_t id = 0; id < barriers_.size(); ++id)
    if (barriers_[id].arrived && !barriers_[id].expected && barriers_[id].arrived >= live_threads_)
      ReleaseBarrier(id);
}

// True: `g` may go on at once (it did not have to wait, or was the last to come).
bool Block::ArriveAtBarrier(Warp& w, Group& g, const BarrierSite& site, bool& bad) {
  const uint32_t first = static_cast<uint32_t>(std::countr_zero(g.mask));
  const uint32_t id = Src<uint32_t>(ctx_, site.id)[first];
  bad = id >= barriers_.size();
  if (bad)
    return false;
  uint32_t arrivals = static_cast<uint32_t>(std::popcount(g.mask));
  BarrierState& state = barriers_[id];
  if (site.count != kNone) {
    state.expected = Src<uint32_t>(ctx_, site.count)[first];
    bad = state.expected == 0 || state.expected % kLanes != 0;
    if (bad)
      return false;
    if (g.mask == w.live)
      arrivals = kLanes;  // a counted barrier counts whole warps
  }
  state.arrived += arrivals;
  if (site.kind == BarrierKind::kRedPopc || site.kind == BarrierKind::kRedAnd ||
      site.kind == BarrierKind::kRedOr) {
    const uint32_t p = *Src<uint32_t>(ctx_, site.predicate) & g.mask;
    state.popc += static_cast<uint32_t>(std::popcount(p));
    state.all &= p == g.mask;
    state.any |= p != 0;
  }
  const bool waits = site.kind != BarrierKind::kArrive;
  if (waits) {
    g.state = GroupState::kBarrier;
    g.barrier = id;
    g.barrier_site = &site;
  }
  if (state.arrived >= (state.expected ? state.expected : live_threads_))
    ReleaseBarrier(id);
  return g.state == GroupState::kRun;
}

// ---- Warp-wide operations ----

namespace {

// The same operation for the lanes of several groups: what must agree.
bool SameOperation(const SyncSite& a, const SyncSite& b) {
  return a.kind == b.kind && a.variant == b.variant && a.wide == b.wide;
}

}  // namespace

void Block::RecheckSyncs(Warp& w) {
  for (uint32_t k = 0; k < w.groups.size(); ++k)
    if (w.groups[k].state == GroupState::kSync)
      Synchronise(w, k);
}

// Group `index` is at Group::sync with Group::member set. True: the operation took place, and the
// groups that took part may run. False: it waits.
bool Block::Synchronise(Warp& w, uint32_t index) {
  Group& g = w.groups[index];
  uint32_t parts[kLanes];
  uint32_t count = 1;
  parts[0] = index;
  uint32_t here = g.mask;
  const uint32_t needed = g.member & w.live;
  if (g.sync->member != kNone && (needed & ~here)) {
    for (uint32_t k = 0; k < w.groups.size(); ++k) {
      const Group& other = w.groups[k];
      if (k == index || other.state != GroupState::kSync || other.member != g.member ||
          !SameOperation(*other.sync, *g.sync))
        continue;
      parts[count++] = k;
      here |= other.mask;
    }
    if (needed & ~here) {
      g.state = GroupState::kSync;
      return false;
    }
  }
  Collective(w, {parts, count});
  for (uint32_t k = 0; k < count; ++k)
    w.groups[parts[k]].state = GroupState::kRun;
  return true;
}

void Block::Collective(Warp& w, std::span<const uint32_t> parts) {
  const SyncSite& first = *w.groups[parts[0]].sync;
  uint32_t all = 0;
  uint64_t value[kLanes] = {};
  uint32_t predicate = 0;
  auto source = [&](const Group& g, uint32_t operand) -> const std::byte* {
    if (operand & kConstBit)
      return launch_
                 .constants[static_cast<size_t>(g.frame->code - launch_.kernel->functions.data())] +
             (operand & ~kConstBit);
    return g.frame->registers + operand;
  };
  for (uint32_t k : parts) {
    const Group& g = w.groups[k];
    all |= g.mask & g.member;  // lanes outside their own member mask take part in nothing
    if (first.kind == SyncKind::kWarpBarrier || first.kind == SyncKind::kElect)
      continue;
    const std::byte* a = source(g, g.sync->a);
    if (first.kind == SyncKind::kVote) {
      uint32_t p;
      std::memcpy(&p, a, 4);
      predicate |= p & g.mask & g.member;
      continue;
    }
    // A shuffle may name a lane that takes no part; what it gets is not defined, here the register.
    if (parts.size() == 1 && !first.wide) {
      uint32_t words[kLanes];
      std::memcpy(words, a, sizeof words);
      std::copy(words, words + kLanes, value);
      continue;
    }
    for (uint32_t m = parts.size() == 1 ? kFull : g.mask; m; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
      if (first.wide)
        std::memcpy(&value[i], a + 8 * i, 8);
      else
        std::memcpy(&value[i], a + 4 * i, 4);
    }
  }

  uint32_t result = 0;  // uniform results
  bool same = true;     // match.all
  if (first.kind == SyncKind::kRedux) {
    const AtomOp op = static_cast<AtomOp>(first.variant);
    bool start = true, nan = false;
    for (uint32_t m = all; m; m &= m - 1) {
      uint32_t v = static_cast<uint32_t>(value[std::countr_zero(m)]);
      if (first.is_float) {
        if (first.abs)
          v &= 0x7FFFFFFF;
        if ((v & 0x7FFFFFFF) > 0x7F800000) {
          nan = true;
          continue;
        }
      }
      if (start) {
        result = v;
        start = false;
        continue;
      }
      // Floats by their order as sign and magnitude.
      auto key = [&](uint32_t x) -> int64_t {
        if (first.is_float)
          return x >> 31 ? -static_cast<int64_t>(x & 0x7FFFFFFF) - 1 : static_cast<int64_t>(x);
        return first.is_signed ? static_cast<int64_t>(static_cast<int32_t>(x))
                               : static_cast<int64_t>(x);
      };
      switch (op) {
        case AtomOp::kAdd:
          result += v;
          break;
        case AtomOp::kMin:
          result = key(v) < key(result) ? v : result;
          break;
        case AtomOp::kMax:
          result = key(v) > key(result) ? v : result;
          break;
        case AtomOp::kAnd:
          result &= v;
          break;
        case AtomOp::kOr:
          result |= v;
          break;
        default:
          result ^= v;
      }
    }
    if (nan && (first.nan || start))
      result = 0x7FFFFFFF;
  } else if (first.kind == SyncKind::kMatchAll) {
    const uint64_t v = value[std::countr_zero(all)];
    for (uint32_t m = all; m; m &= m - 1)
      same &= value[std::countr_zero(m)] == v;
    result = same ? all : 0;
  } else if (first.kind == SyncKind::kElect) {
    result = static_cast<uint32_t>(std::countr_zero(all));
  }

  for (uint32_t k : parts) {
    const Group& g = w.groups[k];
    const SyncSite& site = *g.sync;
    std::byte* registers = g.frame->registers;
    auto set_predicate = [&](uint32_t at, uint32_t bits) {
      if (at == kNone)
        return;
      uint32_t* d = reinterpret_cast<uint32_t*>(registers + at);
      *d = (*d & ~g.mask) | (bits & g.mask);
    };
    switch (first.kind) {
      case SyncKind::kWarpBarrier:
        break;
      case SyncKind::kVote:
        if (site.variant == 3) {
          uint32_t* d = reinterpret_cast<uint32_t*>(registers + site.d);
          for (uint32_t m = g.mask; m; m &= m - 1)
            d[std::countr_zero(m)] = predicate;
        } else {
          const bool yes = site.variant == 0   ? predicate == all
                           : site.variant == 1 ? predicate != 0
                                               : predicate == all || predicate == 0;
          set_predicate(site.d, yes ? kFull : 0);
        }
        break;
      case SyncKind::kShuffle: {
        uint32_t* d = reinterpret_cast<uint32_t*>(registers + site.d);
        uint32_t b[kLanes], c[kLanes];
        std::memcpy(b, source(g, site.b), sizeof b);
        std::memcpy(c, source(g, site.c), sizeof c);
        uint32_t valid = 0;
        for (uint32_t m = g.mask; m; m &= m - 1) {
          const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
          const uint32_t amount = b[i] & 31, clamp = c[i] & 31, segment = c[i] >> 8 & 31;
          const uint32_t most = (i & segment) | (clamp & ~segment), least = i & segment;
          int from;
          bool in;
          switch (site.variant) {
            case 0:
              from = static_cast<int>(i) - static_cast<int>(amount);
              in = from >= static_cast<int>(most);
              break;
            case 1:
              from = static_cast<int>(i + amount);
              in = from <= static_cast<int>(most);
              break;
            case 2:
              from = static_cast<int>(i ^ amount);
              in = from <= static_cast<int>(most);
              break;
            default:
              from = static_cast<int>(least | (amount & ~segment));
              in = from <= static_cast<int>(most);
          }
          d[i] = static_cast<uint32_t>(value[in ? static_cast<uint32_t>(from) & 31 : i]);
          if (in)
            valid |= 1u << i;
        }
        set_predicate(site.d2, valid);
        break;
      }
      case SyncKind::kMatchAny: {
        uint32_t* d = reinterpret_cast<uint32_t*>(registers + site.d);
        for (uint32_t m = g.mask; m; m &= m - 1) {
          const uint32_t i = static_cast<uint32_t>(std::countr_zero(m));
          uint32_t equal = 0;
          for (uint32_t n = all; n; n &= n - 1)
            if (value[std::countr_zero(n)] == value[i])
              equal |= n & (0 - n);
          d[i] = equal;
        }
        break;
      }
      default: {  // a uniform word, and perhaps a predicate
        uint32_t* d = reinterpret_cast<uint32_t*>(registers + site.d);
        for (uint32_t m = g.mask; m; m &= m - 1)
          d[std::countr_zero(m)] = result;
        if (first.kind == SyncKind::kMatchAll)
          set_predicate(site.d2, same ? kFull : 0);
        else if (first.kind == SyncKind::kElect)
          set_predicate(site.d2, 1u << result);
      }
    }
  }
}

// ---- Execution ----

template <bool kTraced>
Block::Stop Block::RunGroup(Warp& w, uint32_t index, uint64_t limit, uint64_t& used) {
  Ctx& c = ctx_;
  Group g = w.groups[index];  // written back where it is left
  Enter(w, g);
  const Op* pc = g.pc;
  uint64_t segment = 0;  // instructions not yet counted for the lanes of g.mask
  uint64_t n = 0;
  Stop stop = Stop::kMore;
  bool gone = false;  // the group no longer exists

  auto reload = [&] {
    Enter(w, g);
    pc = g.pc;
  };
  auto fail = [&](const Op& op, uint32_t lane, int code, const char* what) {
    SetFault(w, g, op, lane, segment, code, what);
    stop = Stop::kFault;
  };

  while (true) {
    const Op& op = *pc;
    if constexpr (kTraced) {
      if (op.weight && ((g.mask >> traced_lane_) & 1)) {
        const uint64_t at = w.count[traced_lane_] + segment;
        const FaultPlan& plan = *launch_.request->fault;
        if (flip_ && at > traced_at_) {
          if (flip_bytes_ == 0) {
            *reinterpret_cast<uint32_t*>(flip_) ^= 1u << traced_lane_;
          } else {
            const uint32_t bit = plan.bit % (8 * flip_bytes_);
            flip_[traced_lane_ * flip_bytes_ + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
          }
          flip_ = nullptr;
          traced_warp_ = kNone;
        }
        if (at == traced_at_ && traced_warp_ != kNone && !flip_) {
          launch_.fault_fired.store(true, std::memory_order_relaxed);
          switch (plan.kind) {
            case FaultPlan::Kind::kError:
              fail(op, traced_lane_, plan.code, "injected");
              fault_.address = plan.address;
              break;
            case FaultPlan::Kind::kFlipMemory:
              if (c.memory->Check(plan.address, 1, DeviceMemory::kRead) !=
                  DeviceMemory::Verdict::kFault)
                __atomic_fetch_xor(reinterpret_cast<uint8_t*>(plan.address),
                                   static_cast<uint8_t>(1u << (plan.bit & 7)), __ATOMIC_RELAXED);
              traced_warp_ = kNone;
              break;
            case FaultPlan::Kind::kFlipRegister: {
              const auto& dest = g.frame->code->destinations[op.source];
              if (dest.offset == kNone) {
                traced_warp_ = kNone;
              } else {
                flip_ = g.frame->registers + dest.offset;
                flip_bytes_ = dest.bytes;
              }
              break;
            }
            case FaultPlan::Kind::kHang:
              g.state = GroupState::kHung;
              traced_warp_ = kNone;
              break;
          }
          if (stop == Stop::kFault)
            break;
          if (g.state == GroupState::kHung) {
            stop = Stop::kYield;
            break;
          }
        }
      }
    }
    uint32_t mask = g.mask;
    ++n;
    if (op.guard != kNone) {
      const uint32_t p = *reinterpret_cast<const uint32_t*>(c.base[0] + op.guard);
      mask &= op.guard_negated ? ~p : p;
      if (!mask) {
        segment += op.weight;
        ++pc;
        if (n >= limit)
          break;
        continue;
      }
    }
    c.next = pc + 1;
    ++c.steps;
    const uint32_t action = op.fn(c, op, mask);
    if (action == kNext) [[likely]] {
      segment += op.weight;
      pc = c.next;
      if (n >= limit) [[unlikely]]
        break;
      continue;
    }

    if (action == kActFault) {
      fail(op, c.fault.lane, c.fault.code, c.fault.what);
      fault_.address = c.fault.address;
      fault_.bytes = c.fault.bytes;
      fault_.write = c.fault.write;
      break;
    }
    segment += op.weight;
    if (action == kActYield) {
      pc = c.next;
      stop = Stop::kYield;
      break;
    }
    const FunctionCode& code = *g.frame->code;
    const Op* ops = code.ops.data();
    Count(w, g.mask, segment);
    switch (action) {
      case kActBranch: {
        const Op* meet = ops + op.imm;
        const Op* target = &op + static_cast<int32_t>(op.target);
        const Op* after = pc + 1;
        if (!(g.join && g.join->pc == meet && g.join->frame == g.frame))
          g.join = NewJoin(w, meet, g.frame, g.mask, g.join);
        const uint32_t rest = g.mask & ~mask;
        // Lanes whose way leads to the meeting point at once need no group.
        if (target == meet) {
          g.mask = rest;
          Group lanes = g;
          Arrive(w, lanes, mask);
          g.pc = after;
        } else if (after == meet) {
          g.mask = mask;
          Group lanes = g;
          Arrive(w, lanes, rest);
          g.pc = target;
        } else {
          Group other = g;
          other.mask = mask;
          other.pc = target;
          w.groups.push_back(other);
          g.mask = rest;
          g.pc = after;
        }
        reload();
        break;
      }
      case kActJoin:
        if (Arrive(w, g, g.mask))
          reload();  // at the same place: an enclosing join may end there as well
        else
          gone = true;
        break;
      case kActBrx: {
        const auto& table = code.tables[op.target];
        const uint32_t* choice = Src<uint32_t>(c, op.a);
        const Op* meet = ops + op.imm;
        bool bad = false;
        uint32_t left = g.mask;
        const Group whole = g;
        bool joined = false;
        while (left) {
          const uint32_t i = static_cast<uint32_t>(std::countr_zero(left));
          if (choice[i] >= table.size()) {
            fail(op, i, kLaunchFailed, "branch index out of range");
            bad = true;
            break;
          }
          uint32_t same = 0;
          for (uint32_t m = left; m; m &= m - 1) {
            const uint32_t k = static_cast<uint32_t>(std::countr_zero(m));
            if (choice[k] < table.size() && table[choice[k]] == table[choice[i]])
              same |= 1u << k;
          }
          left &= ~same;
          if (!joined && same != whole.mask) {
            if (!(g.join && g.join->pc == meet && g.join->frame == g.frame))
              g.join = NewJoin(w, meet, g.frame, g.mask, g.join);
            joined = true;
          }
          Group part = g;
          part.mask = same;
          part.pc = ops + table[choice[i]];
          if (left) {
            w.groups.push_back(part);
          } else {
            g.mask = same;
            g.pc = part.pc;
          }
        }
        if (!bad)
          reload();
        break;
      }
      case kActCall:
        g.pc = pc;
        if (Call(w, g, code.calls[op.target], pc))
          reload();
        else
          stop = Stop::kFault;
        break;
      case kActRet:
        Return(w, g);
        reload();
        break;
      case kActExit: {
        const Group before = g;
        g.mask &= ~mask;
        g.pc = pc + 1;
        // The group's entry must not name lanes that are gone while others are looked at.
        w.groups[index].mask = g.mask;
        Exit(w, before.frame, before.join, mask);
        if (!g.mask)
          gone = true;
        else
          reload();
        break;
      }
      case kActBarrier: {
        bool bad = false;
        g.pc = pc + 1;
        w.groups[index] = g;
        const bool through = ArriveAtBarrier(w, w.groups[index], code.barriers[op.target], bad);
        g = w.groups[index];
        if (bad) {
          fail(op, static_cast<uint32_t>(std::countr_zero(g.mask)), kLaunchFailed,
               "barrier with an invalid number or count");
          break;
        }
        pc = g.pc;
        if (!through)
          stop = Stop::kBlocked;
        break;
      }
      case kActWarpSync: {
        const SyncSite& site = code.syncs[op.target];
        g.sync = &site;
        g.member = g.mask;
        uint32_t others = 0;
        if (site.member != kNone) {
          const uint32_t* member = Src<uint32_t>(c, site.member);
          g.member = member[std::countr_zero(g.mask)];
          for (uint32_t m = g.mask; m; m &= m - 1)
            if (member[std::countr_zero(m)] != g.member)
              others |= m & (0 - m);
        }
        if (others) {  // with other masks: they come to the same place once more, on their own
          Group other = g;
          other.mask = others;
          other.pc = pc;
          w.groups.push_back(other);
          g.mask &= ~others;
          // Counted already; they will be counted again there.
          for (uint32_t m = others; m; m &= m - 1)
            w.count[std::countr_zero(m)] -= op.weight;
          thread_instructions_ -= op.weight * static_cast<uint64_t>(std::popcount(others));
        }
        g.pc = pc + 1;
        w.groups[index] = g;
        const bool done = Synchronise(w, index);
        g = w.groups[index];
        reload();
        if (!done)
          stop = Stop::kBlocked;
        break;
      }
      case kActIntrinsic:
        if (!Intrinsics(w, g, code.calls[op.target])) {
          const std::string what = fault_.what;
          const int fault_code = fault_.code;
          const uint32_t lane = fault_.thread;
          SetFault(w, g, op, lane, 0, fault_code, what);
          fault_.instruction = w.count[lane] - 1;
          stop = Stop::kFault;
        }
        pc = c.next;
        break;
      default:  // kActTrap
        fail(op, static_cast<uint32_t>(std::countr_zero(mask)), kLaunchFailed, "trap");
        fault_.instruction = w.count[std::countr_zero(mask)] - 1;
    }
    if (gone || stop != Stop::kMore)
      break;
    if (n >= limit)
      break;
  }

  Count(w, gone ? 0 : g.mask, segment);
  used += n;
  w.clock += n;
  if (gone) {
    w.groups.erase(w.groups.begin() + index);
  } else {
    g.pc = pc;
    w.groups[index] = g;
  }
  return stop;
}

Block::Stop Block::RunWarp(Warp& w, uint64_t& steps) {
  ctx_.poll_op = w.poll_op;
  ctx_.poll_hash = w.poll_hash;
  ctx_.poll_count = w.poll_count;
  ctx_.last_address = w.last_address;
  Stop result = Stop::kMore;
  uint32_t yields = 0;
  while (steps < kWarpQuantum) {
    uint32_t pick = kNone, runnable = 0;
    const uint32_t size = static_cast<uint32_t>(w.groups.size());
    for (uint32_t k = 0; k < size; ++k) {
      const uint32_t at = (w.turn + k) % size;
      if (w.groups[at].state == GroupState::kRun || w.groups[at].state == GroupState::kHung) {
        ++runnable;
        if (pick == kNone)
          pick = at;
      }
    }
    if (pick == kNone) {
      if (!w.live) {
        result = Stop::kDone;
        break;
      }
      if (ReleaseJoin(w, 0))
        continue;
      result = Stop::kBlocked;
      break;
    }
    if (w.groups[pick].state == GroupState::kHung) {
      // An endless loop that reads the last address used: it ends when that memory goes away.
      const Group& g = w.groups[pick];
      if (w.last_address == 0)
        w.last_address = ctx_.last_address;
      if (w.last_address &&
          ctx_.memory->Check(w.last_address & ~uint64_t{15}, 1, DeviceMemory::kRead) ==
              DeviceMemory::Verdict::kFault) {
        SetFault(w, g, *g.pc, static_cast<uint32_t>(std::countr_zero(g.mask)), 0, kIllegalAddress,
                 "not mapped");
        fault_.address = w.last_address;
        result = Stop::kFault;
        break;
      }
      thread_instructions_ += kGroupQuantum * static_cast<uint64_t>(std::popcount(g.mask));
      steps += kGroupQuantum;
      w.clock += kGroupQuantum;
      w.turn = pick + 1;
      if (++yields >= runnable) {
        result = Stop::kYield;
        break;
      }
      continue;
    }
    const uint64_t left = kWarpQuantum - steps;
    const uint64_t limit = runnable > 1 || w.waiting_joins ? std::min(left, kGroupQuantum) : left;
    uint64_t used = 0;
    const size_t before = w.groups.size();
    const Stop stop = w.id == traced_warp_ ? RunGroup<true>(w, pick, limit, used)
                                           : RunGroup<false>(w, pick, limit, used);
    steps += used;
    if (stop == Stop::kFault) {
      result = Stop::kFault;
      break;
    }
    // A group that is gone has left its place to the next one.
    w.turn = w.groups.size() < before ? pick : pick + 1;
    if (stop == Stop::kYield) {
      w.clock += kGroupQuantum;
      if (++yields >= runnable) {
        if (w.waiting_joins && ReleaseJoin(w, kJoinPatience))
          continue;
        result = Stop::kYield;
        break;
      }
    } else if (stop != Stop::kBlocked) {
      yields = 0;
    }
    if (w.waiting_joins)
      ReleaseJoin(w, kJoinPatience);
  }
  w.poll_op = ctx_.poll_op;
  w.poll_hash = ctx_.poll_hash;
  w.poll_count = ctx_.poll_count;
  w.last_address = ctx_.last_address;
  return result;
}

Block::Outcome Block::Run(uint64_t limit, AccessLog* log) {
  ctx_.log = log;
  ctx_.steps = 0;
  ctx_.clock_base = launch_.warp_steps.load(std::memory_order_relaxed);
  ctx_.time_base = launch_.request->clock_ns + ctx_.clock_base +
                   launch_.waited_ns.load(std::memory_order_relaxed);
  uint64_t done = 0;
  Outcome outcome = Outcome::kMore;
  while (done < limit) {
    bool ran = false, progress = false, yielded = false;
    for (uint32_t k = 0; k < warps_.size() && outcome == Outcome::kMore; ++k) {
      Warp& w = warps_[(first_warp_ + k) % warps_.size()];
      if (!w.live)
        continue;
      uint64_t steps = 0;
      const Stop stop = RunWarp(w, steps);
      done += steps;
      steps_ += steps;
      ran |= steps != 0;
      if (stop == Stop::kFault)
        outcome = Outcome::kFault;
      else if (stop == Stop::kYield)
        yielded = true;
      else if (steps != 0)
        progress = true;
      if (launch_.stop.load(std::memory_order_relaxed))
        break;
    }
    if (outcome == Outcome::kFault)
      return outcome;
    if (live_warps_ == 0)
      return Outcome::kDone;
    if (launch_.stop.load(std::memory_order_relaxed))
      return Outcome::kMore;
    if (progress)
      continue;
    return yielded || ran ? Outcome::kWaiting : Outcome::kStuck;
  }
  return Outcome::kMore;
}

// ---- Built-in functions ----

bool Block::ReadGeneric(uint32_t lane, uint64_t address, void* to, uint32_t bytes) {
  std::byte* out = static_cast<std::byte*>(to);
  for (uint32_t k = 0; k < bytes; ++k) {
    const uint64_t at = address + k;
    const uint64_t offset = at & ~kWindowMask;
    switch (at & kWindowMask) {
      case 0:
        if (ctx_.memory->Check(at, 1, DeviceMemory::kRead) == DeviceMemory::Verdict::kFault)
          return false;
        if (ctx_.log)
          ctx_.log->Read(at, 1);
        out[k] = static_cast<std::byte>(
            __atomic_load_n(reinterpret_cast<const uint8_t*>(at), __ATOMIC_RELAXED));
        break;
      case kSharedWindow:
        if (offset >= ctx_.shared_bytes)
          return false;
        out[k] = ctx_.shared[offset];
        break;
      case kLocalWindow: {
        const std::byte* p = Local(lane, offset, 1);
        if (!p)
          return false;
        out[k] = *p;
        break;
      }
      case kParamWindow:
        if (offset >= ctx_.param_bytes)
          return false;
        out[k] = ctx_.params[offset];
        break;
      default:
        return false;
    }
  }
  return true;
}

bool Block::ReadString(uint32_t lane, uint64_t address, std::string& text) {
  text.clear();
  while (text.size() < kMaxString) {
    char c;
    if (!ReadGeneric(lane, address + text.size(), &c, 1))
      return false;
    if (!c)
      return true;
    text.push_back(c);
  }
  return true;
}

// As CUDA's printf: flags, width, precision and size of C; arguments lie one after another, each
// aligned to its size.
std::string Block::Format(uint32_t lane, uint64_t format, uint64_t args, bool& ok, int& count) {
  std::string text, out;
  count = 0;
  ok = ReadString(lane, format, text);
  if (!ok)
    return out;
  uint64_t at = args;
  auto take = [&](uint32_t bytes) -> uint64_t {
    at = (at + bytes - 1) & ~uint64_t{bytes - 1};
    uint64_t value = 0;
    if (!ReadGeneric(lane, at, &value, bytes))
      ok = false;
    at += bytes;
    return value;
  };
  for (size_t k = 0; k < text.size() && ok; ++k) {
    if (text[k] != '%') {
      out.push_back(text[k]);
      continue;
    }
    if (k + 1 < text.size() && text[k + 1] == '%') {
      out.push_back('%');
      ++k;
      continue;
    }
    const size_t begin = k;
    std::string spec = "%";
    size_t p = k + 1;
    int longs = 0, stars = 0;
    int width[2] = {0, 0};
    bool known = true;
    while (p < text.size() && std::strchr("-+ #0", text[p]))
      spec.push_back(text[p++]);
    for (int part = 0; part < 2; ++part) {
      if (part == 1) {
        if (p >= text.size() || text[p] != '.')
          break;
        spec.push_back(text[p++]);
      }
      if (p < text.size() && text[p] == '*') {
        // Bounded, so that a stray value does not ask for gigabytes.
        width[stars] = std::clamp(static_cast<int32_t>(take(4)), -4096, 4096);
        spec += std::to_string(width[stars]);
        ++stars;
        ++p;
      } else {
        int digits = 0;
        while (p < text.size() && text[p] >= '0' && text[p] <= '9') {
          if (++digits <= 4)
            spec.push_back(text[p]);
          ++p;
        }
      }
    }
    while (p < text.size() && std::strchr("lhzjtq", text[p])) {
      if (text[p] == 'l' || text[p] == 'z' || text[p] == 'j' || text[p] == 't' || text[p] == 'q')
        ++longs;
      p++;
    }
    if (p >= text.size()) {
      out.append(text, begin);
      break;
    }
    const char conversion = text[p];
    std::string piece;
    auto print = [&](auto value) {
      char small[512];
      const int n = std::snprintf(small, sizeof small, spec.c_str(), value);
      if (n < 0)
        return;
      if (static_cast<size_t>(n) < sizeof small) {
        piece.assign(small, static_cast<size_t>(n));
      } else {
        piece.resize(static_cast<size_t>(n) + 1);
        std::snprintf(piece.data(), piece.size(), spec.c_str(), value);
        piece.resize(static_cast<size_t>(n));
      }
    };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    switch (conversion) {
      case 'd':
      case 'i':
        spec += "ll";
        spec.push_back(conversion);
        print(longs ? static_cast<long long>(take(8))
                    : static_cast<long long>(static_cast<int32_t>(take(4))));
        break;
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        spec += "ll";
        spec.push_back(conversion);
        print(static_cast<unsigned long long>(take(longs ? 8 : 4)));
        break;
      case 'c':
        spec.push_back('c');
        print(static_cast<int>(take(4)));
        break;
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A':
        spec.push_back(conversion);
        print(std::bit_cast<double>(take(8)));
        break;
      case 'p':
        spec.push_back('p');
        print(reinterpret_cast<void*>(take(8)));
        break;
      case 's': {
        std::string value;
        ok = ReadString(lane, take(8), value) && ok;
        spec.push_back('s');
        print(value.c_str());
        break;
      }
      default:
        known = false;
    }
#pragma GCC diagnostic pop
    if (!known) {
      out.append(text, begin, p + 1 - begin);
    } else {
      ++count;
      out += piece;
    }
    k = p;
  }
  return out;
}

bool Block::Intrinsics(Warp& w, Group& g, const CallSite& site) {
  Frame& f = *g.frame;
  auto argument = [&](const CallValue& v, uint32_t lane) {
    uint64_t value = 0;
    const uint32_t bytes = std::min(v.bytes, 8u);
    const std::byte* p = v.in_memory ? Local(lane, f.local + v.offset, bytes)
                                     : Src<std::byte>(ctx_, v.offset) + lane * v.bytes;
    if (p)
      std::memcpy(&value, p, bytes);
    return value;
  };
  auto give = [&](uint32_t lane, uint64_t value) {
    if (site.returns.empty())
      return;
    const CallValue& v = site.returns[0];
    const uint32_t bytes = std::min(v.bytes, 8u);
    std::byte* p = v.in_memory ? Local(lane, f.local + v.offset, bytes)
                               : f.registers + v.offset + lane * v.bytes;
    if (p)
      std::memcpy(p, &value, bytes);
  };
  for (uint32_t m = g.mask; m; m &= m - 1) {
    const uint32_t lane = static_cast<uint32_t>(std::countr_zero(m));
    bool ok = true;
    switch (site.intrinsic) {
      case Intrinsic::kPrintf: {
        int count = 0;
        const std::string text =
            Format(lane, argument(site.args[0], lane), argument(site.args[1], lane), ok, count);
        if (ok) {
          launch_.request->print(text);
          give(lane, static_cast<uint64_t>(count));
        }
        break;
      }
      case Intrinsic::kAssertFail: {
        std::string message, file, function;
        ReadString(lane, argument(site.args[0], lane), message);
        ReadString(lane, argument(site.args[1], lane), file);
        ReadString(lane, argument(site.args[3], lane), function);
        const uint32_t line = static_cast<uint32_t>(argument(site.args[2], lane));
        char where[160];
        std::snprintf(where, sizeof where, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `",
                      ctx_.ctaid.x, ctx_.ctaid.y, ctx_.ctaid.z, w.tid[0][lane], w.tid[1][lane],
                      w.tid[2][lane]);
        // The form that CUDA prints, so that tools which look for it find it.
        launch_.request->print(file + ":" + std::to_string(line) + ": " + function + where +
                               message + "` failed.\n");
        fault_.code = kAssert;
        fault_.what = "assertion `" + message + "` failed at " + file + ":" + std::to_string(line);
        fault_.thread = lane;
        // The other lanes of the warp report theirs too.
        if (m & (m - 1))
          continue;
        fault_.thread = static_cast<uint32_t>(std::countr_zero(g.mask));
        return false;
      }
      case Intrinsic::kMalloc:
        give(lane, ctx_.memory->Malloc(argument(site.args[0], lane)));
        break;
      case Intrinsic::kFree:
        if (const uint64_t p = argument(site.args[0], lane))
          ctx_.memory->Free(p);
        break;
      default:
        break;
    }
    if (!ok) {
      fault_.code = kIllegalAddress;
      fault_.what = "printf reads memory that is not mapped";
      fault_.thread = lane;
      return false;
    }
  }
  return true;
}

}  // namespace gpurecover::softgpu::interp
