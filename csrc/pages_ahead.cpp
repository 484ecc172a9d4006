#include "pages_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "memory.h"

namespace penstock {
namespace {

// So long after a step no other has begun: between those of one answer less than a millisecond passes.
constexpr std::chrono::milliseconds kIdle{5};

// Contents stay: a step may write to them meanwhile. False where the system does not know how.
bool clear_pages(std::span<std::byte> pages) {
#if defined(MADV_POPULATE_WRITE)
  return madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0;
#else
  return pages.empty();
#endif
}

}  // namespace

PagesAhead::PagesAhead(std::vector<std::span<std::byte>> parts, size_t block_bytes, int64_t ahead)
    : process_(int(getpid())), state_(std::make_unique<State>()) {
  state_->block_bytes = block_bytes;
  state_->least_ahead = ahead;
  state_->most_ahead = int64_t(kMostAhead / (block_bytes * parts.size()));
  for (const auto& part : parts) state_->parts.push_back({part});
  thread_ = std::thread([state = state_.get()] { state->run(); });
}

PagesAhead::~PagesAhead() {
  if (forked()) {  // it has the handles and not the thread, which may hold the mutex for ever
    (void)new std::thread(std::move(thread_));
    (void)state_.release();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_one();
  thread_.join();
}

bool PagesAhead::forked() const { return int(getpid()) != process_; }

void PagesAhead::begin_step(int64_t last) {
  missing_.clear();
  if (forked()) return;
  const std::lock_guard lock(state_->mutex);
  state_->used = std::max(state_->used, last + 1);
  state_->runs_step = true;
  const size_t written = size_t(state_->used) * state_->block_bytes;
  for (Part& part : state_->parts)
    for (auto page = part.next(written); !page.empty(); page = part.next(written)) {
      missing_.push_back(page);
      part.cleared += page.size();
    }
}

void PagesAhead::clear_missing(Worker& worker) const {
  Tickets::Phase phase = worker.tickets->open(worker, int64_t(missing_.size()), 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t i = some.begin; i < some.end; ++i) clear_pages(missing_[size_t(i)]);
}

void PagesAhead::end_step() {
  if (forked()) return;
  bool wakes;
  {
    const std::lock_guard lock(state_->mutex);
    state_->runs_step = false;
    ++state_->steps;
    wakes = state_->next() != nullptr;
  }
  if (wakes) state_->changed.notify_one();
}

std::span<std::byte> PagesAhead::Part::next(size_t wanted) const {
  if (cleared >= std::min(wanted, bytes.size())) return {};
  return bytes.subspan(cleared, std::min(kHugePage, bytes.size() - cleared));
}

PagesAhead::Part* PagesAhead::State::next() {
  const int64_t ahead = std::max(least_ahead, std::min(used, most_ahead));
  const size_t wanted = size_t(used + ahead) * block_bytes;
  Part* behind = nullptr;
  for (Part& part : parts)
    if (!part.next(wanted).empty() && (!behind || part.cleared < behind->cleared)) behind = &part;
  return behind;
}

void PagesAhead::State::run() {
  std::unique_lock lock(mutex);
  while (!ends) {
    if (runs_step || !next()) {
      changed.wait(lock);
      continue;
    }
    const uint64_t before = steps;
    changed.wait_for(lock, kIdle, [&] { return ends; });
    while (!runs_step && !ends && steps == before) {
      Part* const part = next();
      if (!part) break;
      const std::span<std::byte> page = part->next(part->bytes.size());
      part->cleared += page.size();
      lock.unlock();
      const bool done = clear_pages(page);
      lock.lock();
      if (!done) return;
    }
  }
}

}  // namespace penstock
