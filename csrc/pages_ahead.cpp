#include "pages_ahead.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "memory.h"

namespace penstock {
namespace {

// So long after a step no other has begun: between those of one answer less than a millisecond passes.
constexpr std::chrono::milliseconds kIdle{5};

// Contents stay: a step may write to them meanwhile. False where the system does not know how.
bool clear(std::span<std::byte> pages) {
#if defined(MADV_POPULATE_WRITE)
  return madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0;
#else
  return pages.empty();
#endif
}

}  // namespace

PagesAhead::PagesAhead(std::vector<std::span<std::byte>> parts, size_t block_bytes, int64_t ahead)
    : block_bytes_(block_bytes), ahead_(ahead) {
  for (const auto& part : parts) parts_.push_back({part});
  thread_ = std::thread([this] { run(); });
}

PagesAhead::~PagesAhead() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PagesAhead::begin_step(int64_t last) {
  const std::lock_guard lock(mutex_);
  used_ = std::max(used_, last + 1);
  runs_step_ = true;
}

void PagesAhead::end_step() {
  bool wakes;
  {
    const std::lock_guard lock(mutex_);
    runs_step_ = false;
    ++steps_;
    wakes = next() != nullptr;
  }
  if (wakes) changed_.notify_one();
}

size_t PagesAhead::cleared() const {
  const std::lock_guard lock(mutex_);
  size_t least = parts_.empty() ? 0 : SIZE_MAX;
  for (const Part& part : parts_) least = std::min(least, part.cleared);
  return least;
}

PagesAhead::Part* PagesAhead::next() {
  Part* behind = nullptr;
  for (Part& part : parts_) {
    const size_t wanted = std::min(part.bytes.size(), size_t(used_ + ahead_) * block_bytes_);
    if (part.cleared < wanted && (!behind || part.cleared < behind->cleared)) behind = &part;
  }
  return behind;
}

void PagesAhead::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (runs_step_ || !next()) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t steps = steps_;
    changed_.wait_for(lock, kIdle, [&] { return ends_; });
    while (idle() && steps == steps_) {
      Part* const part = next();
      if (!part) break;
      const size_t size = std::min(kHugePage, part->bytes.size() - part->cleared);
      const std::span<std::byte> pages = part->bytes.subspan(part->cleared, size);
      lock.unlock();
      const bool done = clear(pages);
      lock.lock();
      if (!done) return;
      part->cleared += size;
    }
  }
}

}  // namespace penstock
