// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "cli/report/renderer.h"
#include "cli/report/summary.h"
#include "cli/report/tally.h"

namespace gpurecover::cli {
namespace {

using protocol::VerdictKind;
using testing::HasSubstr;

std::unique_ptr<protocol::SharedPage> page() {
  return std::make_unique<protocol::SharedPage>();
}

protocol::KernelInfo kernel(std::uint32_t row, const std::string& name, VerdictKind verdict) {
  protocol::KernelInfo info;
  info.row = row;
  info.name = name;
  info.verdict = verdict;
  info.reason = verdict == VerdictKind::kIdempotent ? "" : "because";
  return info;
}

protocol::FaultRecord fault(const std::string& outcome) {
  protocol::FaultRecord record;
  record.kernel = "k";
  record.code = 214;
  record.name = "CUDA_ERROR_ECC_UNCORRECTABLE";
  record.phase = "run";
  record.outcome = outcome;
  return record;
}

TEST(Tally, TotalsAddUpWhateverTheCountersHold) {
  constexpr unsigned kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  Tally tally;
  std::vector<std::unique_ptr<protocol::SharedPage>> pages;
  for (int process = 0; process < 5; ++process) {
    pages.push_back(page());
    const auto id = tally.add_process(process + 1, "x", pages.back().get());
    for (int i = 0; i < 50; ++i) {
      const auto row = static_cast<std::uint32_t>(random() % 20);
      pages.back()->kernels[row].launches[random() % 3][random() % 2] += random() % 1000;
      if (row != 0 && random() % 2 == 0) {
        EXPECT_TRUE(tally.kernel(id, kernel(row, "k" + std::to_string(random() % 7),
                                            static_cast<VerdictKind>(random() % 3))));
      }
    }
    for (const char* outcome : {"recovered-replay", "returned", "refused", "declined", "silent"}) {
      EXPECT_TRUE(tally.fault(id, fault(outcome)));
    }
    if (process % 2 == 0) {
      tally.end_process(id);
    }
  }
  const RunSummary summary = tally.summary(true);
  EXPECT_TRUE(check_totals(summary.totals)) << check_totals(summary.totals).error();
  std::uint64_t launches = 0;
  for (const KernelSummary& row : summary.kernels) {
    launches += row.launches;
  }
  EXPECT_EQ(launches, summary.totals.launches);
  EXPECT_GT(launches, 0U);
  EXPECT_EQ(summary.totals.faults, 25U);
}

TEST(Tally, ASummaryInTheMiddleChangesNothing) {
  Tally tally;
  const auto memory = page();
  const auto id = tally.add_process(1, "x", memory.get());
  memory->kernels[1].launches[0][1] = 3;
  EXPECT_EQ(tally.summary(false).totals.launches, 3U);
  EXPECT_EQ(tally.summary(false).totals.launches, 3U);
  memory->kernels[1].launches[0][1] = 5;
  tally.end_process(id);
  EXPECT_EQ(tally.summary(true).totals.launches, 5U);
}

TEST(Tally, OutOfRangeMessagesAreRefused) {
  Tally tally;
  const auto memory = page();
  const auto id = tally.add_process(1, "x", memory.get());
  // Row 0 has many kernels: a name for it is no error, and not its name.
  EXPECT_TRUE(tally.kernel(id, kernel(0, "zero", VerdictKind::kUnknown)));
  memory->kernels[0].launches[2][0] = 1;
  EXPECT_EQ(tally.summary(false).kernels.at(0).name, "(other kernels)");
  EXPECT_FALSE(tally.kernel(id, kernel(protocol::kMaxKernels, "big", VerdictKind::kUnknown)));
  EXPECT_FALSE(tally.kernel(id, kernel(1, "odd", static_cast<VerdictKind>(3))));
  EXPECT_FALSE(tally.reason(id, {protocol::kMaxReasons, "x"}));
  EXPECT_FALSE(tally.call(id, {protocol::kMaxCalls, "x"}));
  EXPECT_FALSE(tally.fault(id, fault("fine")));
  EXPECT_FALSE(tally.fault(id, fault("not-fired")));
}

TEST(Tally, FaultsBeyondTheLimitAreCountedOnly) {
  Tally tally;
  const auto memory = page();
  const auto id = tally.add_process(1, "x", memory.get());
  for (std::size_t i = 0; i < Tally::kMaxFaults + 10; ++i) {
    ASSERT_TRUE(tally.fault(id, fault("returned")));
  }
  const RunSummary summary = tally.summary(true);
  EXPECT_EQ(summary.faults.size(), Tally::kMaxFaults);
  EXPECT_EQ(summary.totals.faults, Tally::kMaxFaults + 10);
  EXPECT_TRUE(check_totals(summary.totals));
}

RunSummary some_summary() {
  Tally tally;
  const auto memory = page();
  const auto id = tally.add_process(1, "x", memory.get());
  memory->kernels[1].launches[1][0] = 3;
  memory->reasons[2] = 3;
  memory->calls[1] = 1;
  tally.kernel(id, kernel(1, "hist|<i>", VerdictKind::kClobbers));
  tally.reason(id, {2, "clobbers"});
  tally.call(id, {1, "cuNew"});
  tally.fault(id, fault("refused"));
  RunSummary summary = tally.summary(true);
  summary.tool = "gpurecover 0";
  summary.command = {"app", "a b"};
  summary.exit = {.code = 3, .signal = std::nullopt, .origin = "app"};
  return summary;
}

TEST(Summary, JsonIsReadBackTheSame) {
  const std::string text = make_json_renderer()->render(some_summary());
  const auto back = parse_summary(text);
  ASSERT_TRUE(back) << back.error();
  EXPECT_EQ(make_json_renderer()->render(*back), text);
  EXPECT_EQ(back->exit.code, 3);
  EXPECT_FALSE(back->exit.signal);
}

TEST(Summary, AnyCutOrChangedTextIsSafeToRead) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::string text = make_json_renderer()->render(some_summary());
  for (std::size_t size = 0; size < text.size() - 2; size += 7) {
    EXPECT_FALSE(parse_summary(std::string_view(text).substr(0, size)));
  }
  for (int round = 0; round < 2000; ++round) {
    std::string changed = text;
    for (int i = 0; i < 3; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    (void)parse_summary(changed);
  }
}

TEST(Renderers, EveryFormatThatIsOfferedWorks) {
  for (const std::string_view format : report_formats()) {
    const auto renderer = make_renderer(format);
    ASSERT_NE(renderer, nullptr) << format;
    EXPECT_THAT(renderer->render(some_summary()), HasSubstr("app")) << format;
    EXPECT_EQ(renderer->render(some_summary()), renderer->render(some_summary()));
  }
  EXPECT_EQ(make_renderer("html"), nullptr);
}

TEST(Renderers, MarkdownCellsCannotBeLeft) {
  EXPECT_THAT(make_markdown_renderer()->render(some_summary()), HasSubstr("hist\\|\\<i\\>"));
}

TEST(HumanSummary, SaysWhatCounts) {
  const std::string text = human_summary(some_summary());
  EXPECT_THAT(text, HasSubstr("3 launches of 1 kernel, 0 protected (0.0%)"));
  EXPECT_THAT(text, HasSubstr("not protected: 3 launches: clobbers"));
  EXPECT_THAT(text, HasSubstr("1 fault: 1 refused"));
  EXPECT_THAT(text, HasSubstr("cuNew"));
}

}  // namespace
}  // namespace gpurecover::cli
