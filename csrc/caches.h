// The caches of a core, as the system states them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace penstock {

// What a core's share of the second level can be. Emulators and hypervisors make sizes up, and what kernels keep
// there must neither shrink to nothing nor grow past every cache.
constexpr int64_t kLeastCache = int64_t(128) << 10, kMostCache = int64_t(64) << 20;

// Bytes of the second level that one core can count on, of the CPUs that the calling thread may run on; a MiB where
// the system says nothing, or what no cache of that level can be. Read once.
int64_t second_level_cache();

// The same of `cpus`, by what Linux says of them in `folder` (/sys/devices/system/cpu); 0 where it says nothing that
// can be. A cache that several cores share is divided among them. Of cores that differ, the share of those with the
// most counts: they are the fast ones, which get threads first.
int64_t second_level_share(const std::string& folder, std::span<const int> cpus);

}  // namespace penstock
