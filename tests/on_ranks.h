#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "sparsemla/communicator.h"

namespace smla::test {

/// Runs f(communicator) on a thread for each of `ranks` ranks. @throws what one of them threw.
inline void on_ranks(int ranks, const std::function<void(Communicator&)>& f) {
  auto group = thread_communicators(ranks);
  std::vector<std::exception_ptr> thrown(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r, own = std::move(group[r])]() mutable {
      try {
        f(*own);
      } catch (...) {
        thrown[r] = std::current_exception();
      }
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& one : thrown) {
    if (one != nullptr) std::rethrow_exception(one);
  }
}

}  // namespace smla::test
