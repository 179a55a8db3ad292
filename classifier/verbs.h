// SPDX-License-Identifier: Apache-2.0
// The verbs `rules` and `classify`, as functions from parsed options to text. They read nothing:
// the command line reads the files and hands over their text.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace gpurecover::classifier {

struct VerbResult {
  std::string out;  // for stdout
  std::string err;  // for stderr, without the prefix "gpurecover: "; may be several lines
  int exit_code = 0;
};

enum class Format : unsigned char { text, json };

// A rule file: its text, or why it could not be read ("No such file or directory").
struct FileText {
  std::string path;
  tl::expected<std::string, std::string> text;
};

// `rules check FILE…`: every problem of every file, on `out`. 0 all good, 1 a file is bad, 2 a file
// could not be read (no verdict).
VerbResult rules_check(const std::vector<FileText>& files);

// `rules dump [--effective] [--rules FILE]`: with `effective`, the user's rules and the built-in
// ones as combined, with origins; else the file's own (or the built-in) rules. 0; 1 bad file; 2
// unreadable.
VerbResult rules_dump(const std::optional<FileText>& file, bool effective);

struct ExplainOptions {
  std::optional<FileText> file;
  std::string cuda;    // any spelling; must be given
  std::string kernel;  // base name or mangled name; empty: not known
  std::string phase;   // "launch" or "run"; empty: run, or launch for a code that a launch reports
  std::vector<std::string> xids;
  Format format = Format::text;
};
// `rules explain`: the winning rule, its place, and why the others lost. 0; 125 bad usage; 1 bad
// file; 2 unreadable.
VerbResult rules_explain(const ExplainOptions& options);

struct ClassifyOptions {
  std::optional<FileText> file;  // --rules
  std::vector<std::string> cuda;
  std::vector<std::string> xids;
  std::string kernel;
  std::string phase;
  Format format = Format::text;
};
// `classify`: what a code or an Xid means and what the rules would do. 0 answered, 125 bad usage
// (also a bad or unreadable rule file).
VerbResult classify(const ClassifyOptions& options);

}  // namespace gpurecover::classifier
