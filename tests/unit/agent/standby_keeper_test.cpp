// SPDX-License-Identifier: Apache-2.0
//
// Which objects of the app's a warm standby is given and loses.
#include "cupti/agent/standby_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gpurecover::agent {
namespace {

using State = Objects::State;
using Keys = std::vector<ObjectKey>;

State object(char kind, std::uint64_t handle, std::uint64_t order, ObjectKey parent = {}) {
  State state;
  state.key = {kind, handle};
  state.parent = parent;
  state.order = order;
  state.identity = order;
  state.by_image = kind == 'm' || kind == 'L';
  return state;
}

Keys keys_of(const std::vector<State>& states) {
  Keys keys;
  for (const State& state : states) {
    keys.push_back(state.key);
  }
  return keys;
}

// Does what the plan says, as it says it.
void follow(const ObjectPlan& plan, HeldObjects& held) {
  for (const ObjectKey key : plan.drop) {
    EXPECT_EQ(held.erase(key), 1U) << "not there";
  }
  for (const State& state : plan.make) {
    if (state.parent.kind != 0 && state.parent.kind != 'c') {
      EXPECT_TRUE(held.contains(state.parent)) << "before its parent";
    }
    held[state.key] = {state.identity, state.version};
  }
}

TEST(PlanObjectsTest, MakesWhatIsThereInItsOrder) {
  HeldObjects held;
  const std::vector<State> now{object('s', 1, 1), object('m', 2, 2), object('f', 3, 3, {'m', 2}),
                               object('e', 4, 4), object('s', 5, 5)};
  const ObjectPlan plan = plan_objects(held, now, {});
  EXPECT_TRUE(plan.drop.empty());
  EXPECT_EQ(keys_of(plan.make), keys_of(now));
  follow(plan, held);
  const ObjectPlan again = plan_objects(held, now, {});
  EXPECT_TRUE(again.drop.empty());
  EXPECT_TRUE(again.make.empty());
}

TEST(PlanObjectsTest, LibrariesAreMadeOnceSomethingIsAskedOfThem) {
  const std::vector<State> unused{object('L', 1, 1), object('L', 2, 2)};
  EXPECT_TRUE(plan_objects({}, unused, {}).make.empty());
  const std::vector<State> used{object('L', 1, 1), object('L', 2, 2), object('f', 3, 3, {'L', 2}),
                                object('f', 4, 4, {'f', 3})};
  EXPECT_EQ(keys_of(plan_objects({}, used, {}).make), (Keys{{'L', 2}, {'f', 3}, {'f', 4}}));
}

TEST(PlanObjectsTest, WhatIsGoneIsDroppedAndItsChildrenFirst) {
  HeldObjects held{{{'m', 2}, {2, 0}}, {{'f', 3}, {3, 0}}, {{'s', 1}, {1, 0}}};
  EXPECT_EQ(plan_objects(held, {object('s', 1, 1)}, {}).drop, (Keys{{'f', 3}, {'m', 2}}));
}

TEST(PlanObjectsTest, AnotherObjectOfTheSameHandleIsMadeAnew) {
  HeldObjects held{{{'m', 2}, {2, 0}}, {{'f', 3}, {3, 0}}};
  const std::vector<State> now{object('m', 2, 7), object('f', 3, 8, {'m', 2})};
  const ObjectPlan plan = plan_objects(held, now, {});
  EXPECT_EQ(plan.drop, (Keys{{'f', 3}, {'m', 2}}));
  EXPECT_EQ(keys_of(plan.make), (Keys{{'m', 2}, {'f', 3}}));
  // Even where the child is taken for the same one.
  const std::vector<State> odd{object('m', 2, 7), [] {
                                 State state = object('f', 3, 8, {'m', 2});
                                 state.identity = 3;
                                 return state;
                               }()};
  EXPECT_EQ(keys_of(plan_objects(held, odd, {}).make), (Keys{{'m', 2}, {'f', 3}}));
}

TEST(PlanObjectsTest, AChangeIsMadeWithoutDropping) {
  HeldObjects held{{{'s', 1}, {1, 0}}};
  State changed = object('s', 1, 1);
  changed.version = 9;
  const ObjectPlan plan = plan_objects(held, {changed}, {});
  EXPECT_TRUE(plan.drop.empty());
  EXPECT_EQ(keys_of(plan.make), (Keys{{'s', 1}}));
}

TEST(PlanObjectsTest, WhatFailedIsLeftAloneAndWhatHangsOnIt) {
  const std::vector<State> now{object('m', 1, 1), object('f', 2, 2, {'m', 1}), object('m', 3, 3)};
  const HeldObjects failed{{{'m', 1}, {1, 0}}};
  EXPECT_EQ(keys_of(plan_objects({}, now, failed).make), (Keys{{'m', 3}}));
  // Another module of that handle is another matter.
  EXPECT_EQ(keys_of(plan_objects({}, {object('m', 1, 4)}, failed).make), (Keys{{'m', 1}}));
}

TEST(PlanObjectsTest, OrphansAreLeftToTheFault) {
  EXPECT_TRUE(plan_objects({}, {object('f', 2, 2, {'m', 1})}, {}).make.empty());
}

// However the app's objects change from one look to the next, what is held afterwards is what there
// is.
TEST(PlanObjectsTest, AnyHistory) {
  constexpr std::uint32_t kSeed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  std::uint64_t order = 0;
  std::map<ObjectKey, State> app;
  HeldObjects held;
  const auto erase = [&](ObjectKey key) {
    app.erase(key);
    std::erase_if(app, [&](const auto& item) { return item.second.parent == key; });
  };
  for (int look = 0; look < 400; ++look) {
    for (std::uint32_t step = random() % 6; step > 0; --step) {
      const char kind = "smfeL"[random() % 5];
      const std::uint64_t handle = 10 + random() % 4;
      const ObjectKey key{kind, handle};
      ObjectKey parent{};
      if (kind == 'f') {
        parent = {random() % 2 != 0 ? 'm' : 'L', 10 + random() % 4};
        if (!app.contains(parent)) {
          continue;
        }
      }
      const auto at = app.find(key);
      switch (random() % 3) {
        case 0:
          erase(key);
          break;
        case 1:
          if (at != app.end()) {
            at->second.version = ++order;
            break;
          }
          [[fallthrough]];
        default:
          erase(key);
          app[key] = object(kind, handle, ++order, parent);
          break;
      }
    }
    std::vector<State> now;
    for (const auto& [key, state] : app) {
      now.push_back(state);
    }
    std::sort(now.begin(), now.end(),
              [](const State& a, const State& b) { return a.order < b.order; });
    follow(plan_objects(held, now, {}), held);
    for (const State& state : now) {
      const bool used = state.key.kind != 'L' ||
                        std::any_of(now.begin(), now.end(),
                                    [&](const State& other) { return other.parent == state.key; });
      const auto has = held.find(state.key);
      if (used) {
        ASSERT_NE(has, held.end());
        EXPECT_EQ(has->second.identity, state.identity);
        EXPECT_EQ(has->second.version, state.version);
      }
    }
    for (const auto& [key, object] : held) {
      ASSERT_TRUE(app.contains(key));
    }
  }
}

// The identities that plans are made from.
TEST(ObjectsTest, AnotherIdentityForAnotherObject) {
  Objects objects;
  const std::uint64_t before = objects.revision();
  objects.note_image({'m', 1});
  const auto first = objects.find({'m', 1});
  ASSERT_TRUE(first);
  EXPECT_NE(objects.revision(), before);
  objects.note_image({'m', 1});
  EXPECT_NE(objects.find({'m', 1})->identity, first->identity);
  ASSERT_EQ(objects.states().size(), 1U);
  EXPECT_EQ(objects.states()[0].identity, objects.find({'m', 1})->identity);
}

}  // namespace
}  // namespace gpurecover::agent
