#include "caches.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace penstock {
namespace {

constexpr int64_t kUnknown = int64_t(1) << 20;
constexpr int kMostIndices = 8;    // caches of one CPU
constexpr int64_t kMostCores = 16;  // that share a second level: of more a hypervisor speaks, and no machine

constexpr bool believable(int64_t bytes) { return bytes >= kLeastCache && bytes <= kMostCache; }

// The first line of a file, or nothing.
std::string first_line(const std::string& path) {
  std::string line;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char text[4096];
    if (std::fgets(text, sizeof(text), file)) line = text;
    std::fclose(file);
  }
  return line.substr(0, line.find('\n'));
}

// Bytes of "48K", "2M" or "1G"; 0 for anything else.
int64_t bytes_of(const std::string& text) {
  char* end;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  if (shift == 0 || number <= 0 || number > kMostCache >> 10) return 0;
  return int64_t(number) << shift;
}

// How many CPUs "0-3,8" names; 0 for anything else.
int64_t count_cpus(const std::string& text) {
  int64_t count = 0;
  const char* at = text.c_str();
  while (true) {
    char* end;
    const long long first = std::strtoll(at, &end, 10);
    if (end == at) return 0;
    long long last = first;
    if (*end == '-') {
      at = end + 1;
      last = std::strtoll(at, &end, 10);
      if (end == at) return 0;
    }
    if (first < 0 || last < first || last > INT32_MAX) return 0;
    count += last - first + 1;
    if (*end == '\0') return count;
    if (*end != ',') return 0;
    at = end + 1;
  }
}

// How many hardware threads a CPU's core has, which the kernel has named in two ways.
int64_t threads_of_core(const std::string& topology) {
  const int64_t threads = count_cpus(first_line(topology + "/core_cpus_list"));
  return std::max<int64_t>(threads ? threads : count_cpus(first_line(topology + "/thread_siblings_list")), 1);
}

// One core's share of the second level, of a CPU's folder.
int64_t share_of(const std::string& cpu) {
  for (int i = 0; i < kMostIndices; ++i) {
    const std::string cache = cpu + "/cache/index" + std::to_string(i);
    if (first_line(cache + "/level") != "2" || first_line(cache + "/type") == "Instruction") continue;
    const int64_t bytes = bytes_of(first_line(cache + "/size"));
    if (!believable(bytes)) return 0;
    const int64_t sharers = count_cpus(first_line(cache + "/shared_cpu_list"));
    const int64_t cores = std::max<int64_t>(sharers / threads_of_core(cpu + "/topology"), 1);
    return cores > kMostCores ? bytes : std::max(bytes / cores, kLeastCache);
  }
  return 0;
}

int64_t read_second_level() {
  cpu_set_t allowed;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)  // it fails where there are more CPUs than fit
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  if (const int64_t share = second_level_share("/sys/devices/system/cpu", cpus)) return share;
  // The C library asks the processor, which on AArch64 does not say.
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const long stated = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (believable(stated)) return stated;
#endif
  return kUnknown;
}

}  // namespace

int64_t second_level_share(const std::string& folder, std::span<const int> cpus) {
  int64_t most = 0;
  for (const int cpu : cpus) most = std::max(most, share_of(folder + "/cpu" + std::to_string(cpu)));
  return most;
}

int64_t second_level_cache() {
  static const int64_t bytes = read_second_level();
  return bytes;
}

}  // namespace penstock
