// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

// The texts of this folder, compiled in; what `--help` prints. Each is written to be read both in a
// terminal and as a page of the documentation.
namespace gpurecover::embedded {

extern const std::string_view help_gpurecover;
extern const std::string_view help_run;
extern const std::string_view help_inject;
extern const std::string_view help_verify;
extern const std::string_view help_analyze;
extern const std::string_view help_classify;
extern const std::string_view help_rules;
extern const std::string_view help_campaign;
extern const std::string_view help_report;
extern const std::string_view help_status;
extern const std::string_view help_doctor;

}  // namespace gpurecover::embedded

namespace gpurecover::cli::help {

inline const std::string_view& gpurecover = embedded::help_gpurecover;
inline const std::string_view& run = embedded::help_run;
inline const std::string_view& inject = embedded::help_inject;
inline const std::string_view& verify = embedded::help_verify;
inline const std::string_view& analyze = embedded::help_analyze;
inline const std::string_view& classify = embedded::help_classify;
inline const std::string_view& rules = embedded::help_rules;
inline const std::string_view& campaign = embedded::help_campaign;
inline const std::string_view& report = embedded::help_report;
inline const std::string_view& status = embedded::help_status;
inline const std::string_view& doctor = embedded::help_doctor;

}  // namespace gpurecover::cli::help
