#include "rank_group.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "refuse.h"
#include "simd.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = 4096;
// Rounds of cpu_pause(), as those between the ops of a step (pool.h).
constexpr uint32_t kSpins = 5000, kCrowdedSpins = 32;
// A sleeper looks this often whether the group has been given up, which wakes nobody.
constexpr std::chrono::milliseconds kLook{20};
// A step is far shorter, even on a busy machine.
constexpr std::chrono::minutes kPatience{10};

constexpr size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Futexes of memory that processes share. Where the system has none, sleepers look again and again.
void sleep_beside_processes(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  const timespec time{0, std::chrono::nanoseconds(kLook).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
#else
  (void)value;
  (void)word;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake_processes(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

// Gathers are counted modulo 2^32, and ranks are at most two apart.
bool reached(uint32_t published, uint32_t gather) { return int32_t(published - gather) >= 0; }

}  // namespace

SharedMapping::SharedMapping(int fd, size_t bytes) : bytes_(bytes) {
  struct stat found;
  if (fstat(fd, &found) != 0)
    throw std::system_error(errno, std::generic_category(), "the memory of ranks cannot be read");
  if (size_t(found.st_size) < bytes)
    refuse("the memory of ranks has " + std::to_string(found.st_size) + " bytes and needs " +
           std::to_string(bytes));
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "the memory of ranks cannot be mapped");
  data_ = static_cast<std::byte*>(data);
}

SharedMapping::~SharedMapping() { munmap(data_, bytes_); }

size_t RankGroup::bytes(int world, size_t slot_bytes) {
  return rounded_up((kLines + size_t(world)) * kLine, kPage) +
         size_t(world) * 2 * rounded_up(slot_bytes, kPage);
}

RankGroup::RankGroup(std::shared_ptr<const SharedMapping> memory, const Place& place)
    : place_(place), memory_(std::move(memory)) {
  if (place.world < 2 || place.rank < 0 || place.rank >= place.world)
    refuse("there is no rank " + std::to_string(place.rank) + " of " +
           std::to_string(place.world));
}

RankGroup::Word& RankGroup::word(size_t line) const {
  return *reinterpret_cast<Word*>(memory_->data() + line * kLine);
}

std::byte* RankGroup::slot(int rank, uint32_t gather) const {
  const size_t place = size_t(rank) * 2 + gather % 2;
  return memory_->data() + rounded_up((kLines + size_t(place_.world)) * kLine, kPage) +
         place * rounded_up(place_.slot_bytes, kPage);
}

bool RankGroup::given_up() const { return word(0).load(std::memory_order_relaxed) != 0; }

void RankGroup::may_write(uint32_t gather) {
  // The slot was written two gathers ago, and who has published the gather between has read it. All
  // have, since this rank has waited for them, unless that gather was for rank 0 alone.
  for (int r = 0; r < place_.world; ++r)
    if (r != place_.rank && !wait(r, gather - 1)) return;
}

void RankGroup::publish() {
  Word& own = published(place_.rank);
  own.store(++gathers_, std::memory_order_seq_cst);
  if (word(1).load(std::memory_order_seq_cst) != 0) wake_processes(own);
}

bool RankGroup::wait(int other, uint32_t gather) {
  Word& theirs = published(other);
  const uint32_t spins = place_.crowded ? kCrowdedSpins : kSpins;
  for (uint32_t i = 0; i < spins; ++i) {
    if (reached(theirs.load(std::memory_order_acquire), gather)) return !given_up();
    cpu_pause();
  }
  // Announced before looking again, as in Barrier: who publishes either sees the sleeper, or the
  // sleeper sees what was published.
  Word& sleepers = word(1);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const bool came = sleep(theirs, gather);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return came;
}

bool RankGroup::sleep(Word& theirs, uint32_t gather) {
  const auto end = Clock::now() + kPatience;
  for (;;) {
    if (given_up()) return false;
    const uint32_t seen = theirs.load(std::memory_order_seq_cst);
    if (reached(seen, gather)) return true;
    if (Clock::now() > end) {
      word(0).store(1, std::memory_order_relaxed);
      return false;
    }
    sleep_beside_processes(theirs, seen);
  }
}

}  // namespace penstock
