// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report/summary.h"

namespace gpurecover::cli {

// A report format. Rendering is pure and deterministic.
class Renderer {
 public:
  virtual ~Renderer() = default;
  virtual std::string render(const RunSummary& summary) const = 0;
};

std::unique_ptr<Renderer> make_json_renderer();
std::unique_ptr<Renderer> make_junit_renderer();
std::unique_ptr<Renderer> make_markdown_renderer();

// The renderer of a format word, or null.
std::unique_ptr<Renderer> make_renderer(std::string_view format);
const std::vector<std::string_view>& report_formats();

}  // namespace gpurecover::cli
