#include "engine/deliver/step_window.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace widestream::delivery {
namespace {

std::shared_ptr<const Step> StepNumber(std::uint64_t number) {
  auto step = std::make_shared<Step>();
  step->number = number;
  return step;
}

std::optional<std::uint64_t> NumberOf(const Result<std::shared_ptr<const Step>>& found) {
  EXPECT_TRUE(found.ok()) << found.status().ToString();
  if (!found.ok() || *found == nullptr) return std::nullopt;
  return (*found)->number;
}

TEST(StepWindow, AStepStaysUntilAllPlacesHaveAcknowledgedIt) {
  StepWindow window({true, true});
  EXPECT_EQ(NumberOf(window.Find(0, std::nullopt)), std::nullopt);
  ASSERT_TRUE(window.Push(StepNumber(4)).ok());
  ASSERT_TRUE(window.Push(StepNumber(6)).ok());
  EXPECT_EQ(NumberOf(window.Find(0, std::nullopt)), 4U);
  EXPECT_EQ(NumberOf(window.Find(0, 4)), 6U);
  EXPECT_EQ(NumberOf(window.Find(0, 6)), std::nullopt);
  ASSERT_TRUE(window.Acknowledge(0, 6).ok());
  ASSERT_TRUE(window.Acknowledge(1, 6).ok());
  EXPECT_EQ(window.steps_in_memory(), 1U);  // 6 is free although 4 is not
  EXPECT_EQ(window.InMemory(6), nullptr);
  ASSERT_TRUE(window.Acknowledge(0, 4).ok());
  EXPECT_EQ(window.Unacknowledged(1), std::vector<std::uint64_t>{4});
  ASSERT_TRUE(window.Acknowledge(1, 4).ok());
  EXPECT_EQ(window.steps_in_memory(), 0U);
}

TEST(StepWindow, WhatIsOutOfTurnIsRefused) {
  StepWindow window({true, true});
  ASSERT_TRUE(window.Push(StepNumber(0)).ok());
  EXPECT_FALSE(window.Push(StepNumber(0)).ok());
  EXPECT_FALSE(window.Find(0, 1).ok());
  EXPECT_FALSE(window.Acknowledge(0, 1).ok());
  ASSERT_TRUE(window.Acknowledge(0, 0).ok());
  EXPECT_FALSE(window.Find(0, std::nullopt).ok());
  EXPECT_EQ(NumberOf(window.Find(1, std::nullopt)), 0U);
  EXPECT_FALSE(window.Begin(0, 0).ok());
  EXPECT_TRUE(window.Begin(0, 1).ok());
}

TEST(StepWindow, APlaceThatBeginsLaterHasTheStepsBefore) {
  StepWindow window({true, true});
  ASSERT_TRUE(window.Begin(1, 3).ok());
  for (std::uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(window.Push(StepNumber(step)).ok());
  EXPECT_EQ(window.Unacknowledged(1), (std::vector<std::uint64_t>{3, 4}));
  EXPECT_EQ(NumberOf(window.Find(1, 2)), 3U);
  for (std::uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(window.Acknowledge(0, step).ok());
  EXPECT_EQ(window.steps_in_memory(), 2U);
}

TEST(StepWindow, PlacesThatDoNotFetchHoldNothing) {
  StepWindow window({true, false});
  ASSERT_TRUE(window.Push(StepNumber(0)).ok());
  EXPECT_TRUE(window.Unacknowledged(1).empty());
  ASSERT_TRUE(window.Acknowledge(0, 0).ok());
  EXPECT_EQ(window.steps_in_memory(), 0U);
}

TEST(StepWindow, RangesAreForPeople) {
  EXPECT_EQ(Ranges({}), "");
  EXPECT_EQ(Ranges({3}), "3");
  EXPECT_EQ(Ranges({3, 4, 5, 7, 9, 10}), "3 to 5, 7, 9 to 10");
}

// Against a model: which steps each place has acknowledged.
RC_GTEST_PROP(StepWindow, KeepsExactlyWhatSomePlaceHasNotAcknowledged, ()) {
  const auto places = *rc::gen::inRange<std::size_t>(1, 4);
  StepWindow window(std::vector<bool>(places, true));
  std::map<std::uint64_t, std::set<std::size_t>> missing;  // by step
  std::uint64_t next = 0;
  const auto actions =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::arbitrary<std::uint32_t>());
  for (const std::uint32_t action : actions) {
    if (action % 3 == 0) {
      next += 1 + action / 3 % 2;
      RC_ASSERT(window.Push(StepNumber(next)).ok());
      for (std::size_t place = 0; place < places; ++place) missing[next].insert(place);
    } else if (next > 0) {
      const std::uint64_t step = 1 + action / 3 % next;
      const std::size_t place = action / 1000 % places;
      RC_ASSERT(window.Acknowledge(place, step).ok());
      const auto found = missing.find(step);
      if (found != missing.end()) found->second.erase(place);
    }
    std::size_t in_memory = 0;
    for (const auto& [step, lacking] : missing) {
      in_memory += lacking.empty() ? 0 : 1;
      RC_ASSERT((window.InMemory(step) != nullptr) == !lacking.empty());
    }
    RC_ASSERT(window.steps_in_memory() == in_memory);
  }
}

}  // namespace
}  // namespace widestream::delivery
