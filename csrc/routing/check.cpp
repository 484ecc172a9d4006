// The tables of a router against plain ones, for builds that check themselves (.ci/sanitize), and
// without Python: requests, reports, and replicas that come and go, at random. The argument says how
// many steps, and exits with 1 where a table tells something else than the plain one.
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "books.h"
#include "costs.h"

using namespace penstock;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds || ++failures > 20) return;
  std::printf("FAIL %s\n", what);
}

using Name = uint64_t;

std::string joined(const std::vector<Name>& names) {
  std::string keys;
  for (const Name name : names) {
    const BlockKey key{name, ~name};
    keys.append(reinterpret_cast<const char*>(&key), sizeof key);
  }
  return keys;
}

// One replica, by standard containers.
struct Plain {
  std::set<Name> held;
  std::multiset<Name> expected;
  std::list<Name> used;  // the latest last
  size_t capacity = 0;   // 0: it reports

  bool holds(Name name) const { return held.count(name) || expected.count(name); }
  void use(const std::vector<Name>& names) {
    for (size_t i = std::min(names.size(), capacity); i-- > 0;) {
      used.remove(names[i]);
      used.push_back(names[i]);
    }
    while (used.size() > capacity) used.pop_front();
    held = {used.begin(), used.end()};
  }
};

struct Replica {
  Plain plain;
  std::optional<ReportedBook> reported;
  std::optional<AssumedBook> assumed;
  std::vector<std::vector<Name>> open;

  Book& book() { return reported ? static_cast<Book&>(*reported) : *assumed; }
};

class Check {
 public:
  explicit Check(uint32_t seed) : random_(seed) {
    // Of some names there are few holders, of some many, and of the lowest all.
    for (size_t i = 0; i < kReplicas; ++i) join(i);
  }

  void step() {
    const size_t number = random_() % kReplicas;
    Replica& replica = *replicas_[number];
    switch (random_() % 12) {
      case 0: case 1: case 2: case 3: begin(replica); break;
      case 4: case 5: case 6: end(replica); break;
      case 7: case 8: case 9: change(replica); break;
      case 10: if (random_() % 8 == 0) replace(replica); break;
      case 11: if (random_() % 16 == 0) leave(number); break;
    }
    look(number);
    if (random_() % 64 == 0) look_at_all();
  }

 private:
  static constexpr size_t kReplicas = 150;

  void join(size_t number) {
    replicas_[number] = std::make_unique<Replica>();
    Replica& replica = *replicas_[number];
    if (random_() % 3) {
      replica.reported.emplace(index_, number);
    } else {
      replica.plain.capacity = 1 + random_() % 60;
      replica.assumed.emplace(index_, number, replica.plain.capacity);
    }
    loads_.join(number);
  }

  // A path through a tree of prompts, which all begin with few blocks.
  std::vector<Name> prompt() {
    std::vector<Name> names;
    Name name = 0;
    for (size_t left = random_() % 40; left > 0; --left)
      names.push_back(name = 3 * name + 1 + (names.size() < 5 ? 0 : random_() % 3) % 3);
    return names;
  }

  void begin(Replica& replica) {
    const std::vector<Name> names = prompt();
    const std::string keys = joined(names);
    if (replica.reported) {
      replica.reported->begin(BlockKeys(keys));
      replica.plain.expected.insert(names.begin(), names.end());
      replica.open.push_back(names);
    } else {
      replica.assumed->begin(BlockKeys(keys));
      replica.plain.use(names);
    }
  }

  void end(Replica& replica) {
    if (replica.open.empty()) return;
    std::swap(replica.open[random_() % replica.open.size()], replica.open.back());
    replica.reported->end(BlockKeys(joined(replica.open.back())));
    for (const Name name : replica.open.back())
      replica.plain.expected.erase(replica.plain.expected.find(name));
    replica.open.pop_back();
  }

  void change(Replica& replica) {
    if (!replica.reported) return;
    const std::vector<Name> added = prompt();
    std::vector<Name> removed;
    for (const Name name : replica.plain.held)
      if (random_() % 4 == 0) removed.push_back(name);
    replica.plain.held.insert(added.begin(), added.end());
    for (const Name name : removed) replica.plain.held.erase(name);
    replica.reported->change(BlockKeys(joined(added)), BlockKeys(joined(removed)));
  }

  void replace(Replica& replica) {
    if (!replica.reported) {
      replica.assumed->clear();
      replica.plain.use({});
      replica.plain.used.clear();
      replica.plain.held.clear();
      return;
    }
    std::vector<Name> held = prompt();
    for (const Name name : replica.plain.held)
      if (random_() % 2) held.push_back(name);  // some come twice
    replica.plain.held = {held.begin(), held.end()};
    replica.reported->replace(BlockKeys(joined(held)));
  }

  void leave(size_t number) {
    replicas_[number]->book().leave();
    loads_.leave(number);
    join(number);
  }

  void look(size_t number) {
    Replica& replica = *replicas_[number];
    expect(replica.book().held() == replica.plain.held.size(), "how much a replica holds");
    expect(index_.held().level(number) == int64_t(replica.plain.held.size()), "its level");
    std::set<Name> held;
    for (const BlockKey& key : replica.book().keys()) held.insert(key.low);
    expect(held == replica.plain.held, "what a replica holds");
  }

  void look_at_all() {
    std::map<Name, std::set<size_t>> holders;
    for (size_t i = 0; i < kReplicas; ++i) {
      for (const Name name : replicas_[i]->plain.held) holders[name].insert(i);
      for (const Name name : replicas_[i]->plain.expected) holders[name].insert(i);
    }
    expect(index_.size() == holders.size(), "how many keys there are");
    ReplicaSet found, expected;
    for (const auto& [name, replicas] : holders) {
      expected.reset(0);
      for (const size_t replica : replicas) expected.add(replica);
      index_.holders({name, ~name}, found);
      expect(same(found, expected), "the holders of a key");
    }
    const std::vector<Name> names = prompt();
    const std::string keys = joined(names);
    ReplicaSet among;
    for (size_t i = 0; i < kReplicas; ++i)
      if (random_() % 5) among.add(i);
    if (among.empty()) return;
    Overlaps overlaps;
    index_.prefixes({BlockKeys(keys), 1}, among, overlaps);
    ReplicaSet seen;
    for (const Overlaps::Group& group : overlaps.groups()) {
      seen.add(group.replicas);
      for (size_t i = 0; i < kReplicas; ++i)
        if (group.replicas.contains(i)) expect(prefix(i, names) == group.held, "a prefix");
    }
    expect(same(seen, among), "each replica is in a group");
    const Chain chain{BlockKeys(keys), 8};
    const auto tokens = int64_t(8 * names.size() + 3);
    const Cheapest& cheapest = costs_.cheapest({&chain, 1}, tokens, among);
    for (size_t i = 0; i < kReplicas; ++i) {
      if (!among.contains(i)) continue;
      const int64_t uncached = tokens - 8 * prefix(i, names);
      const int64_t cost = 3 * uncached + (index_.full().contains(i) ? uncached / 4 : 0);
      expect(cost >= cheapest.cost, "nowhere it costs less");
      if (cheapest.replicas.contains(i)) expect(cost == cheapest.cost, "what it costs");
    }
    expect(!cheapest.replicas.empty(), "somewhere it costs least");
  }

  int64_t prefix(size_t number, const std::vector<Name>& names) const {
    int64_t count = 0;
    for (const Name name : names) {
      if (!replicas_[number]->plain.holds(name)) break;
      ++count;
    }
    return count;
  }

  static bool same(const ReplicaSet& left, const ReplicaSet& right) {
    for (size_t i = 0; i < std::max(left.width(), right.width()); ++i)
      if (left.word(i) != right.word(i)) return false;
    return true;
  }

  std::mt19937 random_;
  HolderIndex index_;
  LoadBook loads_{{.decode_tokens = 1, .grain = 1, .given_grain = 1, .uncached = 3, .lost = 0.25}};
  Costs costs_{index_, loads_};
  std::unique_ptr<Replica> replicas_[kReplicas];
};

}  // namespace

int main(int count, char** words) {
  const int steps = count > 1 ? std::atoi(words[1]) : 20000;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    Check check(seed);
    for (int i = 0; i < steps; ++i) check.step();
  }
  if (failures == 0) std::printf("the router's tables are as plain ones\n");
  return failures == 0 ? 0 : 1;
}
