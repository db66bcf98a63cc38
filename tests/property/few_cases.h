#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <sstream>

namespace smla::test {

/// rc::check with its own number of cases, for properties that run a whole layer or engine; a failure prints what to
/// set RC_PARAMS to.
template <class Property>
void check_few(const char* what, int cases, const Property& property) {
  rc::detail::TestMetadata metadata;
  metadata.id = what;
  metadata.description = what;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::min(params.maxSuccess, cases);
  const auto result = rc::detail::checkTestable(property, metadata, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  if (!result.template is<rc::detail::SuccessResult>()) {
    FAIL() << what << " (seed " << params.seed << "): " << text.str();
  }
}

}  // namespace smla::test
