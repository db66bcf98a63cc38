#include "engine/lru_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace smla {
namespace {

TEST(LruCache, GivesUpWhatWasAskedForLongestAgo) {
  LruCache<int, std::string> cache(3, 1000);
  for (const int key : {1, 2, 3}) cache.insert(key, "value " + std::to_string(key));
  ASSERT_NE(cache.find(1), nullptr);
  EXPECT_EQ(*cache.find(1), "value 1");
  cache.insert(4, "value 4");
  EXPECT_EQ(cache.find(2), nullptr);
  for (const int key : {1, 3, 4}) EXPECT_NE(cache.find(key), nullptr) << key;
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.inserted(), 4);
  EXPECT_EQ(cache.evicted(), 1);
}

TEST(LruCache, KeepsToItsBytesButForTheNewest) {
  LruCache<int, int> cache(100, 10);
  for (const int key : {1, 2, 3}) {
    cache.insert(key, key);
    cache.charge(4);
  }
  EXPECT_EQ(cache.size(), 2) << "4 + 4 + 4 is more than 10";
  EXPECT_EQ(cache.bytes(), 8);
  EXPECT_EQ(cache.find(1), nullptr);
  cache.insert(4, 4);
  cache.charge(50);
  EXPECT_EQ(cache.size(), 1) << "alone it may be larger than all are allowed";
  EXPECT_EQ(cache.bytes(), 50);
  cache.charge(5);
  EXPECT_EQ(cache.bytes(), 5) << "a charge takes the place of the one before";
  EXPECT_EQ(cache.evicted(), 3);
}

TEST(LruCache, AValueKeepsItsAddressWhileOthersComeAndGo) {
  LruCache<int, std::unique_ptr<int>> cache(2, 1000);
  cache.insert(0, std::make_unique<int>(0));
  const auto* first = cache.find(0);
  for (int key = 1; key < 50; ++key) {
    cache.insert(key, std::make_unique<int>(key));
    ASSERT_EQ(cache.find(0), first);
  }
  EXPECT_EQ(cache.evicted(), 48);
}

TEST(LruCache, WhatIsClearedIsNotEvicted) {
  LruCache<int, int> cache(2, 1000);
  cache.insert(1, 1);
  cache.charge(7);
  cache.clear();
  EXPECT_EQ(cache.size(), 0);
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(cache.evicted(), 0);
  EXPECT_EQ(cache.find(1), nullptr);
}

}  // namespace
}  // namespace smla
