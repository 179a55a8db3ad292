// SPDX-License-Identifier: Apache-2.0
//
// The flow of control of a kernel: which instructions are reached, with the functions that it calls
// inlined at each call. Internal to image/sass/.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "image/sass/graph.h"
#include "image/sass/word.h"

namespace gpurecover::image::sass {

class Flow {
 public:
  Flow(const Code& code, const CubinKernel& kernel);

  // Fills graph.blocks with blocks without values. Empty result: done; else why not.
  std::string build(Graph& graph);

  std::uint32_t size() const { return size_; }
  Word word(std::uint32_t pc) const;

  // Where an instruction leads, apart from calls and returns.
  struct Step {
    enum Kind : std::uint8_t { kFall, kJump, kBranch, kTable, kExit, kCall, kReturn, kRefused };
    Kind kind = kFall;
    bool conditional = false;  // of exits, calls and returns: else falls through
    bool in_doubt = false;     // of branches: taken or not, whatever the predicates say
    std::uint32_t target = 0;
    const char* refusal = nullptr;
  };
  Step step(std::uint32_t pc) const;
  // Of branches, in bytes: the target as an offset in the section.
  std::int64_t displacement(std::uint32_t pc) const;

  struct Return {
    std::uint32_t pc = 0, block = 0;
    std::uint32_t back_to = 0;  // the instruction after the call
  };
  const std::vector<Return>& returns() const { return returns_; }

 private:
  struct Context {
    std::uint32_t parent = 0, back_to = 0, entry = 0, depth = 0;
    std::vector<std::uint8_t> marks;  // per instruction: 1 reached, 2 begins a block
  };
  std::string visit(std::uint32_t context, std::uint32_t pc);
  void read_tables(const CubinKernel& kernel);
  void find_calls_that_are_jumps();
  bool returns(std::uint32_t entry) const;

  const Code& code_;
  std::span<const std::byte> text_;
  std::uint32_t size_ = 0;
  std::vector<Context> contexts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> calls_;  // (context, pc)
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pending_;
  std::vector<Return> returns_;
  // Targets of calls that never return: ptxas uses calls as jumps, too.
  std::set<std::uint32_t> never_return_;
  // Where indirect branches lead, by the compiler's own list.
  std::map<std::uint32_t, std::vector<std::uint32_t>> tables_;
  std::vector<bool> barrier_targets_;  // per instruction and barrier: a BSSY leads here
  std::size_t reached_ = 0;
};

}  // namespace gpurecover::image::sass
