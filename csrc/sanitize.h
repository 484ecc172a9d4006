// Whether this is a build that checks itself (PENSTOCK_SANITIZE of CMakeLists.txt).
#pragma once

#include <cstddef>


#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_CHECKS_ADDRESSES 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_CHECKS_ADDRESSES 1
#endif

#if defined(PENSTOCK_CHECKS_ADDRESSES)
#include <sanitizer/asan_interface.h>
#endif

namespace penstock {

#if defined(PENSTOCK_CHECKS_ADDRESSES)
constexpr bool kChecksAddresses = true;
// Reads and writes of these bytes are reported until they are freed.
inline void forbid_access(const void* bytes, size_t count) {
  ASAN_POISON_MEMORY_REGION(bytes, count);
}
#else
constexpr bool kChecksAddresses = false;
inline void forbid_access(const void*, size_t) {}
#endif

}  // namespace penstock
