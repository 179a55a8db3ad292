// SPDX-License-Identifier: Apache-2.0
#include "inject/plan.h"

#include <array>
#include <utility>

namespace gpurecover::inject {
namespace {

constexpr std::array<std::pair<How, const char*>, 3> kHows{
    {{How::kCode, "code"}, {How::kLatch, "latch"}, {How::kFault, "fault"}}};
constexpr std::array<std::pair<Damage, const char*>, 4> kDamages{{{Damage::kNone, "none"},
                                                                  {Damage::kWhole, "whole"},
                                                                  {Damage::kPartial, "partial"},
                                                                  {Damage::kScribble, "scribble"}}};

template <class Table, class Value>
const char* word_of(const Table& table, Value value) {
  for (const auto& [entry, text] : table) {
    if (entry == value) {
      return text;
    }
  }
  return "?";
}

template <class Value, class Table>
std::optional<Value> value_of(const Table& table, const std::string& word) {
  for (const auto& [entry, text] : table) {
    if (word == text) {
      return entry;
    }
  }
  return std::nullopt;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

bool made_by_gpu(std::int32_t code) {
  return code == 700 || code == 710 || code == 716 || code == 719;
}

const char* word(How how) {
  return word_of(kHows, how);
}
const char* word(Damage damage) {
  return word_of(kDamages, damage);
}
std::optional<How> parse_how(const std::string& word) {
  return value_of<How>(kHows, word);
}
std::optional<Damage> parse_damage(const std::string& word) {
  return value_of<Damage>(kDamages, word);
}

std::string repeat_options(const Fault& fault, std::uint64_t match) {
  std::string out = "--kernel " + quoted(fault.kernel) + " --error " + fault.kind + " --how " +
                    word(fault.how) + " --damage " + word(fault.damage) + " --nth " +
                    std::to_string(match) + " --seed " + std::to_string(fault.seed);
  if (fault.at) {
    out += " --at block=" + std::to_string(fault.at->block) +
           ",thread=" + std::to_string(fault.at->thread) +
           ",instr=" + std::to_string(fault.at->instruction);
  }
  if (fault.strict) {
    out += " --strict";
  }
  return out;
}

}  // namespace gpurecover::inject
