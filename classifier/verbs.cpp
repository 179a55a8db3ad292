// SPDX-License-Identifier: Apache-2.0
#include "classifier/verbs.h"

#include <algorithm>
#include <charconv>

#include "classifier/catalogue.h"
#include "classifier/kernel_name.h"
#include "classifier/rules_toml.h"
#include "classifier/suggest.h"
#include "classifier/verbs_internal.h"

namespace gpurecover::classifier {
namespace verbs {

std::string place_of(const Rule& rule) {
  return rule.file + ":" + std::to_string(rule.line);
}

std::string_view meaning_of(const XidAnswer& answer) {
  if (answer.info)
    return answer.info->meaning;
  return answer.xid <= kLastXid ? "Unused in NVIDIA's catalog." : "Newer than the known catalog.";
}

std::string_view bucket_of(const XidAnswer& answer) {
  if (answer.info)
    return answer.info->bucket;
  return answer.xid <= kLastXid ? "CONTACT_SUPPORT" : "unknown";
}

Rerun rerun_of(const XidAnswer& answer) {
  return answer.info ? answer.info->rerun : Rerun::unknown;
}

}  // namespace verbs

namespace {

using verbs::Classification;
using verbs::CodeAnswer;
using verbs::Contender;
using verbs::Explanation;
using verbs::place_of;
using verbs::XidAnswer;

constexpr int kGood = 0;
constexpr int kBad = 1;
constexpr int kNoVerdict = 2;
constexpr int kUsage = 125;

template <class T>
using Result = tl::expected<T, VerbResult>;

tl::unexpected<VerbResult> failure(int exit_code, std::string text) {
  return tl::unexpected(VerbResult{"", std::move(text), exit_code});
}

std::string list_problems(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems)
    text += to_string(problem) + "\n";
  return text;
}

Result<ParsedRules> read(const FileText& file) {
  if (!file.text)
    return failure(kNoVerdict, "cannot read " + file.path + ": " + file.text.error() + "\n");
  ParsedRules parsed = parse_rules(*file.text, file.path);
  if (!parsed.ok())
    return failure(kBad, list_problems(parsed.problems));
  return parsed;
}

// The rules that are asked, in order, and those that are not, with the reason.
struct Ranking {
  RuleSet effective;
  std::vector<std::pair<Rule, std::string>> dropped;
};

Result<Ranking> rank(const std::optional<FileText>& file) {
  Ranking ranking;
  if (!file) {
    ranking.effective = default_rules();
    return ranking;
  }
  const auto parsed = read(*file);
  if (!parsed)
    return tl::unexpected(parsed.error());
  ranking.effective = combine(*parsed, default_rules());
  const auto& kept = ranking.effective.rules;
  for (const Rule& rule : default_rules().rules) {
    if (std::find(kept.begin(), kept.end(), rule) != kept.end())
      continue;
    const auto same =
        std::find_if(kept.begin(), kept.end(), [&](const Rule& own) { return own.id == rule.id; });
    ranking.dropped.emplace_back(
        rule, same != kept.end() ? "replaced by the rule of the same id at " + place_of(*same)
                                 : "left nothing to match by the rules of " + file->path);
  }
  return ranking;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string reason(const Rule& rule, Mismatch mismatch, const Query& query) {
  switch (mismatch) {
    case Mismatch::none:
      return "would match too, but comes later";
    case Mismatch::code: {
      std::vector<std::string> codes;
      for (const std::int32_t code : rule.codes)
        codes.push_back(std::to_string(code));
      return "is for other codes: " + join(codes);
    }
    case Mismatch::phase:
      return "is for the " + std::string(to_string(*effective_phase(rule))) + " phase";
    case Mismatch::kernel:
      return query.kernel.empty() ? "is for kernels " + rule.kernel + ", and no kernel is given"
                                  : "is for kernels " + rule.kernel;
    case Mismatch::xid: {
      std::vector<std::string> xids;
      for (const std::int32_t xid : rule.xids)
        xids.push_back(std::to_string(xid));
      return "needs Xid " + join(xids);
    }
  }
  return "?";
}

Explanation explain(const Ranking& ranking, const Query& query, bool phase_assumed) {
  Explanation e;
  e.query = query;
  e.phase_assumed = phase_assumed;
  e.match = match(ranking.effective, query);
  for (const Rule& rule : ranking.effective.rules) {
    const bool wins = &rule == e.match.rule;
    const Mismatch mismatch = compare(rule, query);
    e.contenders.push_back({&rule, wins, wins ? "" : reason(rule, mismatch, query),
                            !wins && mismatch == Mismatch::code});
  }
  for (const auto& [rule, why] : ranking.dropped) {
    const bool other = compare(rule, query) == Mismatch::code;
    e.contenders.push_back({&rule, false, why, other});
  }
  return e;
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string action_text(const Match& m) {
  std::string text(to_string(m.action));
  if (m.action == Action::replay || m.action == Action::retry) {
    text += ", up to " + plural(m.max_attempts, "time");
    if (m.backoff_us != 0)
      text += ", first after " + format_duration(m.backoff_us);
  } else if (m.action == Action::stop) {
    text += ": the error goes to the program, and nothing more is recovered in this session";
  } else {
    text += ": the error goes to the program";
  }
  return text;
}

std::string row(std::string_view label, std::string_view text) {
  if (text.empty())
    return "";
  std::string line = "  " + std::string(label);
  line.resize(std::max<std::size_t>(line.size() + 1, 12), ' ');
  return line + std::string(text) + "\n";
}

std::string rule_rows(const Explanation& e) {
  const Match& m = e.match;
  return row("rule", m.rule ? m.rule->id + " (" + place_of(*m.rule) + ")"
                            : "none matches; the error is returned") +
         row("class",
             std::string(to_string(m.cls)) + ", scope " + std::string(to_string(m.scope))) +
         row("action", action_text(m)) + row("message", m.message()) +
         row("source", m.rule ? std::string_view(m.rule->source) : "");
}

std::string heading(const CodeInfo& info) {
  std::string text = std::string(info.name()) + " (" + std::to_string(info.code);
  if (info.driver_name && info.runtime_name)
    text += ", " + std::string(info.runtime_name);
  return text + ")";
}

std::string sticky_text(const CodeInfo& info) {
  switch (info.sticky) {
    case Sticky::no:
      return "no";
    case Sticky::documented:
      return "yes (documented): every later call of the process fails with it";
    case Sticky::measured:
      return "yes (documented and measured): every later call of the process fails with it";
    case Sticky::silent:
      return "taken to be (cuda.h is silent)";
  }
  return "?";
}

std::string to_text(const Explanation& e) {
  const CodeInfo* info = find_code(e.query.code);
  std::string text = info ? heading(*info) : code_name(e.query.code);
  text += ", phase " + std::string(to_string(e.query.phase));
  if (e.phase_assumed)
    text += " (assumed; --phase sets it)";
  text += e.query.kernel.empty() ? ", kernel not given" : ", kernel " + std::string(e.query.kernel);
  for (const SeenXid& seen : e.query.xids)
    text += ", Xid " + std::to_string(seen.xid);
  text += "\n" + rule_rows(e);
  std::size_t others = 0;
  std::string losers;
  for (const Contender& c : e.contenders) {
    if (c.other_code)
      ++others;
    else if (!c.wins)
      losers += "  " + c.rule->id + " (" + place_of(*c.rule) + ") " + c.why + "\n";
  }
  if (!losers.empty())
    text += "losers\n" + losers;
  if (others != 0)
    text += "  " + plural(others, "rule") + " for other codes\n";
  return text;
}

std::string to_text(const Classification& c) {
  std::string text;
  for (const CodeAnswer& answer : c.codes) {
    text += (text.empty() ? "" : "\n") + heading(*answer.info) + "\n" +
            row("meaning", answer.info->meaning) + row("nature", to_string(answer.info->nature)) +
            row("sticky", sticky_text(*answer.info)) +
            row("known from", std::string(answer.info->source) + ", " + answer.info->date);
    for (const Explanation& e : answer.decisions)
      text +=
          std::string(e.query.phase == Phase::launch ? "from a launch\n" : "from running work\n") +
          rule_rows(e);
  }
  for (const XidAnswer& answer : c.xids) {
    text += (text.empty() ? "" : "\n") + ("Xid " + std::to_string(answer.xid)) + "\n" +
            row("meaning", verbs::meaning_of(answer)) + row("NVIDIA", verbs::bucket_of(answer)) +
            row("rerun", advice(verbs::rerun_of(answer)));
    if (answer.info)
      text += row("known from", std::string(answer.info->source) + ", " + answer.info->date);
  }
  return text;
}

Result<const CodeInfo*> code_option(const std::string& text) {
  const CodeInfo* info = find_code(std::string_view(text));
  if (info && info->code != 0)
    return info;
  if (info)
    return failure(kUsage, "--cuda: 0 is success, there is nothing to classify\n");
  const std::string_view near = nearest_code_name(text);
  return failure(kUsage, "--cuda: no CUDA error is called '" + text + "'" +
                             (near.empty() ? "; give a name such as CUDA_ERROR_ILLEGAL_ADDRESS or "
                                             "a number such as 700"
                                           : "; did you mean '" + std::string(near) + "'?") +
                             "\n");
}

Result<std::int32_t> xid_option(const std::string& text) {
  std::int32_t xid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), xid);
  if (error != std::errc() || end != text.data() + text.size() || xid < 1 || xid > 999)
    return failure(kUsage, "--xid: '" + text + "' is no Xid; give a number from 1 to 999\n");
  return xid;
}

Result<std::optional<Phase>> phase_option(const std::string& text) {
  if (text.empty())
    return std::nullopt;
  const auto phase = from_word<Phase>(text);
  if (phase)
    return phase;
  const std::string_view near = nearest(text, words_of<Phase>());
  return failure(kUsage, "--phase: unknown phase '" + text + "'; " +
                             (near.empty() ? "it is launch or run"
                                           : "did you mean '" + std::string(near) + "'?") +
                             "\n");
}

Result<std::vector<SeenXid>> xid_options(const std::vector<std::string>& texts) {
  std::vector<SeenXid> seen;
  for (const std::string& text : texts) {
    const auto xid = xid_option(text);
    if (!xid)
      return tl::unexpected(xid.error());
    seen.push_back({*xid, 0});
  }
  return seen;
}

Result<std::string> explain_text(const ExplainOptions& options) {
  if (options.cuda.empty())
    return failure(kUsage, "rules explain needs a code, such as --cuda 700\n");
  const auto info = code_option(options.cuda);
  if (!info)
    return tl::unexpected(info.error());
  const auto phase = phase_option(options.phase);
  if (!phase)
    return tl::unexpected(phase.error());
  auto xids = xid_options(options.xids);
  if (!xids)
    return tl::unexpected(xids.error());
  const auto ranking = rank(options.file);
  if (!ranking)
    return tl::unexpected(ranking.error());

  const std::string kernel = kernel_base_name(options.kernel);
  const Phase assumed = is_sticky((*info)->code) ? Phase::run : Phase::launch;
  const Query query{(*info)->code, phase->value_or(assumed), kernel, *std::move(xids)};
  const Explanation e = explain(*ranking, query, !*phase);
  return options.format == Format::json ? verbs::to_json(e) : to_text(e);
}

Result<std::string> classify_text(const ClassifyOptions& options) {
  if (options.cuda.empty() && options.xids.empty())
    return failure(kUsage,
                   "classify needs something to classify, such as --cuda 700 or --xid 94\n");
  const auto phase = phase_option(options.phase);
  if (!phase)
    return tl::unexpected(phase.error());
  const auto xids = xid_options(options.xids);
  if (!xids)
    return tl::unexpected(xids.error());
  std::vector<const CodeInfo*> codes;
  for (const std::string& text : options.cuda) {
    const auto info = code_option(text);
    if (!info)
      return tl::unexpected(info.error());
    codes.push_back(*info);
  }
  const auto ranking = rank(options.file);
  if (!ranking)
    return failure(kUsage, ranking.error().err);

  const std::string kernel = kernel_base_name(options.kernel);
  Classification c;
  for (const CodeInfo* info : codes) {
    CodeAnswer answer{info, {}};
    for (const Phase p : {Phase::launch, Phase::run}) {
      // A sticky error is of the run phase by definition.
      const bool asked = *phase ? p == **phase : p == Phase::run || !is_sticky(info->code);
      if (asked)
        answer.decisions.push_back(explain(*ranking, {info->code, p, kernel, *xids}, !*phase));
    }
    c.codes.push_back(std::move(answer));
  }
  for (const SeenXid& seen : *xids)
    c.xids.push_back({seen.xid, find_xid(seen.xid)});
  return options.format == Format::json ? verbs::to_json(c) : to_text(c);
}

VerbResult finish(Result<std::string> text) {
  if (!text)
    return text.error();
  return {*std::move(text), "", kGood};
}

}  // namespace

VerbResult rules_check(const std::vector<FileText>& files) {
  if (files.empty())
    return {"", "rules check needs a file\n", kUsage};
  VerbResult result;
  for (const FileText& file : files) {
    if (!file.text) {
      result.err += "cannot read " + file.path + ": " + file.text.error() + "\n";
      result.exit_code = kNoVerdict;
      continue;
    }
    const ParsedRules parsed = parse_rules(*file.text, file.path);
    if (!parsed.ok()) {
      result.out += list_problems(parsed.problems) + file.path + ": " +
                    plural(parsed.problems.size(), "problem") + "\n";
      if (result.exit_code == kGood)
        result.exit_code = kBad;
    } else {
      result.out += file.path + ": good (" + plural(parsed.rules.rules.size(), "rule") + ", " +
                    plural(parsed.rules.kernels.size(), "kernel") + ")\n";
    }
  }
  return result;
}

VerbResult rules_dump(const std::optional<FileText>& file, bool effective) {
  if (!file)
    return {effective ? dump(default_rules(), true) : std::string(default_rules_text()), "", kGood};
  const auto parsed = read(*file);
  if (!parsed)
    return parsed.error();
  if (effective)
    return {dump(combine(*parsed, default_rules()), true), "", kGood};
  RuleSet own = parsed->rules;
  if (!parsed->has_trust)
    own.trust = default_rules().trust;
  return {dump(own, true), "", kGood};
}

VerbResult rules_explain(const ExplainOptions& options) {
  return finish(explain_text(options));
}

VerbResult classify(const ClassifyOptions& options) {
  return finish(classify_text(options));
}

}  // namespace gpurecover::classifier
