// SPDX-License-Identifier: Apache-2.0
// Run summary to JSON and back.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "cli/report/renderer.h"

namespace gpurecover::cli {
namespace {

using Json = nlohmann::ordered_json;
using Steps = std::vector<protocol::FaultStep>;

// The members of a struct, named once for both directions: `member(name, value)`.
template <class Visitor>
void visit(DeviceInfo& device, Visitor& member) {
  member("kind", device.kind);
  member("name", device.name);
  member("driver", device.driver);
  member("cc", device.cc);
}

template <class Visitor>
void visit(ExitInfo& exit, Visitor& member) {
  member("code", exit.code);
  member("signal", exit.signal);
  member("origin", exit.origin);
}

template <class Visitor>
void visit(Totals& totals, Visitor& member) {
  member("launches", totals.launches);
  member("kernels", totals.kernels);
  member("idempotent", totals.idempotent);
  member("clobbers", totals.clobbers);
  member("unknown", totals.unknown);
  member("protected", totals.protected_);
  member("unprotected", totals.unprotected);
  member("snapshotted", totals.snapshotted);
  member("faults", totals.faults);
  member("recovered", totals.recovered);
  member("returned", totals.returned);
  member("refused", totals.refused);
  member("declined", totals.declined);
  member("not_fired", totals.not_fired);
  member("silent", totals.silent);
}

template <class Visitor>
void visit(KernelSummary& kernel, Visitor& member) {
  member("name", kernel.name);
  member("launches", kernel.launches);
  member("verdict", kernel.verdict);
  member("trust", kernel.trust);
  member("reason", kernel.reason);
  member("reads", kernel.reads);
  member("writes", kernel.writes);
  member("analysis", kernel.analysis);
}

template <class Visitor>
void visit(FaultSummary& fault, Visitor& member) {
  protocol::FaultRecord& record = fault.record;
  member("kernel", record.kernel);
  member("launch", record.launch);
  member("stream", record.stream);
  member("code", record.code);
  member("name", record.name);
  member("phase", record.phase);
  member("injected", record.injected);
  member("rule", record.rule);
  member("class", record.cls);
  member("verdict", record.verdict);
  member("trust", record.trust);
  member("action", record.action);
  member("attempts", record.attempts);
  member("repeats", record.repeats);
  member("outcome", record.outcome);
  member("reason", record.reason);
  member("message", record.message);
  member("detect_ms", record.detect_ms);
  member("recover_ms", record.recover_ms);
  member("repeat", record.repeat);
  member("steps", record.steps);
  member("pid", fault.pid);
}

template <class Visitor>
void visit(ProcessSummary& process, Visitor& member) {
  member("pid", process.pid);
  member("executable", process.executable);
  member("active", process.active);
  member("reason", process.reason);
  member("cupti_version", process.cupti_version);
  member("launches", process.launches);
}

template <class Visitor>
void visit(RunSummary& summary, Visitor& member) {
  member("tool", summary.tool);
  member("command", summary.command);
  member("session", summary.session);
  member("level", summary.level);
  member("started", summary.started);
  member("device", summary.device);
  member("exit", summary.exit);
  member("wall_s", summary.wall_s);
  member("totals", summary.totals);
  member("unprotected_reasons", summary.unprotected_reasons);
  member("kernels", summary.kernels);
  member("faults", summary.faults);
  member("calls_without_row", summary.calls_without_row);
  member("processes", summary.processes);
}

class JsonWriter {
 public:
  explicit JsonWriter(Json& out) : out_(out) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, Steps>) {
      if (value.empty()) {
        return;  // most faults have none
      }
    }
    if constexpr (std::is_same_v<T, OptionalText>) {
      if (value.text.empty()) {
        return;
      }
    }
    out_[name] = to_json(value);
  }

 private:
  static Json to_json(const std::string& value) { return value; }
  static Json to_json(const OptionalText& value) { return value.text; }
  static Json to_json(bool value) { return value; }
  static Json to_json(std::int32_t value) { return value; }
  static Json to_json(std::int64_t value) { return value; }
  static Json to_json(std::uint32_t value) { return value; }
  static Json to_json(std::uint64_t value) { return value; }
  static Json to_json(double value) {
    // Microseconds are what is known; JSON has no infinities.
    return std::isfinite(value) ? Json(std::round(value * 1e6) / 1e6) : Json(0.0);
  }
  static Json to_json(const Steps& steps) {
    Json out = Json::object();
    for (const auto& step : steps) {
      out[step.name] = to_json(step.ms);
    }
    return out;
  }
  template <class T>
  static Json to_json(const std::optional<T>& value) {
    return value ? to_json(*value) : Json(nullptr);
  }
  template <class T>
  static Json to_json(const std::vector<T>& values) {
    Json out = Json::array();
    for (const T& value : values) {
      out.push_back(to_json(value));
    }
    return out;
  }
  static Json to_json(const std::map<std::string, std::uint64_t>& values) {
    Json out = Json::object();
    for (const auto& [name, value] : values) {
      out[name] = value;
    }
    return out;
  }
  template <class T>
  static Json to_json(const T& value) {
    Json out = Json::object();
    JsonWriter writer(out);
    // visit() takes a mutable struct because it serves reading too; writing changes nothing.
    visit(const_cast<T&>(value), writer);
    return out;
  }
  Json& out_;
};

class JsonReader {
 public:
  JsonReader(const Json& in, std::string path, std::string& error)
      : in_(in), path_(std::move(path)), error_(error) {}

  template <class T>
  void operator()(const char* name, T& value) {
    if (!error_.empty()) {
      return;
    }
    const std::string path = path_.empty() ? name : path_ + "." + name;
    const auto found = in_.find(name);
    if (found == in_.end()) {
      if constexpr (std::is_same_v<T, Steps> || std::is_same_v<T, OptionalText>) {
        return;
      }
      error_ = path + " is missing";
      return;
    }
    read(*found, path, value);
  }

 private:
  void expect(const std::string& path, const char* what, const Json& got) {
    if (error_.empty()) {
      error_ = fmt::format("{} must be {}, not {}", path, what, got.type_name());
    }
  }
  void read(const Json& in, const std::string& path, std::string& value) {
    in.is_string() ? value = in.get<std::string>(), void() : expect(path, "a string", in);
  }
  void read(const Json& in, const std::string& path, OptionalText& value) {
    read(in, path, value.text);
  }
  void read(const Json& in, const std::string& path, bool& value) {
    in.is_boolean() ? value = in.get<bool>(), void() : expect(path, "true or false", in);
  }
  void read(const Json& in, const std::string& path, double& value) {
    in.is_number() ? value = in.get<double>(), void() : expect(path, "a number", in);
  }
  void read(const Json& in, const std::string& path, std::int64_t& value) {
    in.is_number_integer()          ? value = in.get<std::int64_t>(),
                             void() : expect(path, "a whole number", in);
  }
  void read(const Json& in, const std::string& path, std::uint64_t& value) {
    in.is_number_unsigned()          ? value = in.get<std::uint64_t>(),
                              void() : expect(path, "a whole number from 0", in);
  }
  void read(const Json& in, const std::string& path, std::int32_t& value) {
    std::int64_t wide = 0;
    read(in, path, wide);
    narrow(path, wide, value);
  }
  void read(const Json& in, const std::string& path, std::uint32_t& value) {
    std::int64_t wide = 0;
    read(in, path, wide);
    narrow(path, wide, value);
  }
  template <class T>
  void narrow(const std::string& path, std::int64_t wide, T& value) {
    if (wide < std::numeric_limits<T>::min() || wide > std::numeric_limits<T>::max()) {
      if (error_.empty()) {
        error_ = fmt::format("{} is out of range: {}", path, wide);
      }
      return;
    }
    value = static_cast<T>(wide);
  }
  template <class T>
  void read(const Json& in, const std::string& path, std::optional<T>& value) {
    if (!in.is_null()) {
      read(in, path, value.emplace());
    }
  }
  template <class T>
  void read(const Json& in, const std::string& path, std::vector<T>& values) {
    if (!in.is_array()) {
      expect(path, "a list", in);
      return;
    }
    for (std::size_t i = 0; i < in.size() && error_.empty(); ++i) {
      read(in[i], fmt::format("{}[{}]", path, i), values.emplace_back());
    }
  }
  void read(const Json& in, const std::string& path, std::map<std::string, std::uint64_t>& values) {
    if (!in.is_object()) {
      expect(path, "an object", in);
      return;
    }
    for (const auto& [name, value] : in.items()) {
      read(value, path + "." + name, values[name]);
    }
  }
  void read(const Json& in, const std::string& path, Steps& steps) {
    if (!in.is_object()) {
      expect(path, "an object", in);
      return;
    }
    for (const auto& [name, value] : in.items()) {
      steps.push_back({name, 0});
      read(value, path + "." + name, steps.back().ms);
    }
  }
  template <class T>
  void read(const Json& in, const std::string& path, T& value) {
    if (!in.is_object()) {
      expect(path, "an object", in);
      return;
    }
    JsonReader reader(in, path, error_);
    visit(value, reader);
  }
  const Json& in_;
  std::string path_;
  std::string& error_;
};

class JsonRenderer : public Renderer {
 public:
  std::string render(const RunSummary& summary) const override {
    Json out = Json::object();
    out["schema"] = kRunSchema;
    JsonWriter writer(out);
    visit(const_cast<RunSummary&>(summary), writer);
    // Names come from the app and need not be UTF-8.
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }
};

// Depth is checked before parsing because the parser's own recursion is not bounded.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > 64) {
        return true;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

tl::expected<RunSummary, std::string> parse_summary(std::string_view text) {
  if (too_deep(text)) {
    return failure("not a run summary: nested too deeply");
  }
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    std::size_t line = 1;
    const std::size_t at = std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
    for (std::size_t i = 0; i < at; ++i) {
      line += text[i] == '\n' ? 1 : 0;
    }
    return failure(fmt::format("line {}: not JSON", line));
  }
  if (!json.is_object()) {
    return failure("not a run summary: not a JSON object");
  }
  const auto schema = json.find("schema");
  if (schema == json.end() || !schema->is_string()) {
    return failure(fmt::format("schema is missing; expected \"{}\"", kRunSchema));
  }
  if (const auto name = schema->get<std::string>(); name != kRunSchema) {
    return failure(
        name == "gpurecover.campaign/1"
            ? "campaign summaries are not rendered in this version"
            : fmt::format("schema is \"{}\"; this version reads \"{}\"", name, kRunSchema));
  }
  RunSummary summary;
  std::string error;
  JsonReader reader(json, "", error);
  visit(summary, reader);
  if (!error.empty()) {
    return failure(error);
  }
  for (const FaultSummary& fault : summary.faults) {
    if (outcome_total(fault.record.outcome) == nullptr) {
      return failure(fmt::format("faults: '{}' is no outcome", fault.record.outcome));
    }
  }
  if (auto good = check_totals(summary.totals); !good) {
    return failure(good.error());
  }
  return summary;
}

std::unique_ptr<Renderer> make_json_renderer() {
  return std::make_unique<JsonRenderer>();
}

}  // namespace gpurecover::cli
