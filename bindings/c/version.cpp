#include "sparsemla/c_api.h"

// SMLA_VERSION_* come from the project's version in CMakeLists.txt.
extern "C" {

const char* smla_version(void) { return SMLA_VERSION_TEXT; }

void smla_version_numbers(int32_t* major, int32_t* minor, int32_t* patch) {
  if (major != nullptr) *major = SMLA_VERSION_MAJOR;
  if (minor != nullptr) *minor = SMLA_VERSION_MINOR;
  if (patch != nullptr) *patch = SMLA_VERSION_PATCH;
}

}  // extern "C"
