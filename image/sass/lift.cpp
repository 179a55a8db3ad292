// SPDX-License-Identifier: Apache-2.0
#include "image/sass/lift.h"

#include <exception>

#include "image/sass/code.h"
#include "image/sass/graph.h"
#include "image/sass/trace.h"
#include "image/sass/translate.h"

namespace gpurecover::image::sass {

tl::expected<MachineCode, Error> MachineCode::open(std::span<const std::byte> cubin) try {
  auto code = read_code(cubin);
  if (!code)
    return tl::make_unexpected(std::move(code.error()));
  MachineCode m;
  m.code_ = std::make_shared<const Code>(std::move(*code));
  return m;
} catch (const std::exception&) {
  return tl::make_unexpected(Error{"out of memory", 0, "free memory and try again"});
}

std::uint32_t MachineCode::sm() const {
  return code_->sm;
}

tl::expected<ptx::Module, std::string> MachineCode::lift(std::string_view name) const try {
  const CubinKernel* const kernel = code_->cubin.find(name);
  if (kernel == nullptr)
    return tl::make_unexpected(std::string("the kernel is not in its module's machine code"));
  Graph graph;
  if (std::string why = translate(*code_, *kernel, graph); !why.empty())
    return tl::make_unexpected(std::move(why));
  widen(graph);
  ptx::Module module;
  if (std::string why = emit(graph, module); !why.empty())
    return tl::make_unexpected(std::move(why));
  return module;
} catch (const std::exception&) {
  return tl::make_unexpected(std::string("out of memory"));
}

std::vector<TracedInstruction> MachineCode::trace(std::string_view name,
                                                  std::string& why_not) const {
  std::vector<TracedInstruction> all;
  const CubinKernel* const kernel = code_->cubin.find(name);
  if (kernel == nullptr) {
    why_not = "the kernel is not in its module's machine code";
    return all;
  }
  Graph graph;
  why_not = translate(*code_, *kernel, graph, &all);
  return all;
}

}  // namespace gpurecover::image::sass
