// SPDX-License-Identifier: Apache-2.0
// decode_dump FILE OUT: writes the cubins in FILE (a fatbin, an object, a cubin) to OUT.1, OUT.2 …,
// and to stdout a line of JSON for each machine instruction that the decoder reaches in them:
// nvdisasm_check.py holds them against nvdisasm.
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "image/cubin.h"
#include "image/image.h"
#include "image/sass/lift.h"
#include "image/sass/trace.h"

namespace {

using gpurecover::image::sass::TracedInstruction;

// Names and reasons hold no characters that JSON would have to escape.
void print_list(const char* name, const std::vector<std::string>& list) {
  std::printf(", \"%s\": [", name);
  for (std::size_t k = 0; k < list.size(); ++k)
    std::printf("%s\"%s\"", k == 0 ? "" : ", ", list[k].c_str());
  std::printf("]");
}

void print(const TracedInstruction& t, std::uint32_t sm) {
  std::printf("{\"offset\": %u, \"opcode\": \"0x%03x\", \"name\": \"%s\"", t.offset, t.opcode,
              std::string(gpurecover::image::sass::mnemonic(t.opcode, sm)).c_str());
  std::printf(", \"guard\": \"%s\", \"opaque\": %s, \"memory\": \"%s\"", t.guard.c_str(),
              t.opaque ? "true" : "false", t.memory.c_str());
  print_list("reads", t.reads);
  print_list("writes", t.writes);
  print_list("may_write", t.may_write);
  std::printf(", \"numbers\": {");
  const char* separator = "";
  for (const auto& [what, value] : t.numbers) {
    std::printf("%s\"%s\": %lld", separator, what.c_str(), static_cast<long long>(value));
    separator = ", ";
  }
  std::printf("}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: decode_dump FILE OUT\n");
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  const std::string bytes = content.str();
  const auto opened = gpurecover::image::open(std::as_bytes(std::span(bytes)));
  if (!opened) {
    std::fprintf(stderr, "%s: %s\n", argv[1], opened.error().message().c_str());
    return 1;
  }
  unsigned count = 0;
  for (const auto& e : opened->entries) {
    if (e.kind != gpurecover::image::EntryKind::kCubin)
      continue;
    const std::string name = std::string(argv[2]) + "." + std::to_string(++count);
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(e.data.data()),
               static_cast<std::streamsize>(e.data.size()));
    std::printf("{\"cubin\": \"%s\", \"sm\": %u}\n", name.c_str(), e.sm);
    const auto code = gpurecover::image::sass::MachineCode::open(e.data);
    const auto list = gpurecover::image::read_cubin(e.data);
    if (!code || !list) {
      std::fprintf(stderr, "%s: not read\n", name.c_str());
      return 1;
    }
    for (const auto& kernel : list->kernels) {
      std::string why_not;
      std::vector<TracedInstruction> trace = code->trace(kernel.name, why_not);
      // Functions that are called come once for each call, and blocks may come in any order.
      std::set<std::uint32_t> seen;
      std::printf("{\"kernel\": \"%s\", \"why_not\": \"%s\"}\n", kernel.name.c_str(),
                  why_not.c_str());
      for (const TracedInstruction& t : trace)
        if (seen.insert(t.offset).second)
          print(t, code->sm());
    }
  }
  return 0;
}
