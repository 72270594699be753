// The search for many devices: by sites. See planner_search.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "ring/planner_search.h"

namespace tandem::ring::search {
namespace {

constexpr size_t kMostSites = 10;

using Row = std::vector<double>;

struct Site {
  std::vector<uint32_t> devices;
  double inside = kNever;  ///< the cheapest hop between two of them
  double again = 0;        ///< what each device but the first adds to the way, at least
  /// [devices + 1][layers + 1]: what the first k of them cost to hold n layers, hops included.
  std::vector<Row> tables;
};

/// Cheapest run of each length that fits anywhere.
Row runs_of(const Problem& problem, uint32_t device) {
  Row cheapest(problem.layers + 1, kNever);
  cheapest[0] = 0;
  for (const Choice& choice : problem.choices) {
    if (choice.device != device) continue;
    for (uint32_t end = 1; end <= problem.layers; ++end) {
      for (uint32_t start = choice.start[end]; start < end; ++start) {
        cheapest[end - start] = std::min(cheapest[end - start], choice.run(start, end));
      }
    }
  }
  return cheapest;
}

/// result[n] = least of a[i] + b[n - i] (+ `each` where n - i > 0).
Row add(const Row& a, const Row& b, double each) {
  Row result = a;
  for (size_t taken = 1; taken < b.size(); ++taken) {
    const double cost = b[taken] + each;
    if (cost == kNever) continue;
    for (size_t i = 0; i + taken < a.size(); ++i) {
      result[i + taken] = std::min(result[i + taken], a[i] + cost);
    }
  }
  return result;
}

/// True if the links of two devices differ by no more than `tolerance` of the greater.
bool alike(const Problem& problem, uint32_t a, uint32_t b, double tolerance) {
  auto near = [&](double x, double y) {
    return x == y || std::abs(x - y) <= tolerance * std::max(x, y) + 1e-12;
  };
  for (uint32_t other = 0; other < problem.devices; ++other) {
    if (other == a || other == b) continue;
    if (!near(problem.hop[a][other], problem.hop[b][other]) ||
        !near(problem.hop[other][a], problem.hop[other][b])) {
      return false;
    }
  }
  return true;
}

std::vector<Site> make_sites(const Problem& problem) {
  std::vector<Site> sites;
  for (const double tolerance : {0.0, 0.02, 0.1, 0.3, 0.6, 0.9, kNever}) {
    sites.clear();
    for (uint32_t device = 1; device < problem.devices; ++device) {
      const auto site = std::find_if(sites.begin(), sites.end(), [&](const Site& one) {
        return tolerance == kNever || alike(problem, one.devices.front(), device, tolerance);
      });
      if (site != sites.end()) {
        site->devices.push_back(device);
      } else if (sites.size() <= kMostSites) {
        sites.push_back({{device}, kNever, 0, {}});
      }
    }
    if (sites.size() <= kMostSites) break;
  }
  return sites;
}

}  // namespace

SitesAnswer by_sites(const Problem& problem) {
  SitesAnswer answer;
  if (problem.devices == 0) return answer;
  std::vector<Site> sites = make_sites(problem);
  const size_t count = sites.size();
  // Hops between sites; the host is the one after the last.
  std::vector<Row> hop(count + 1, Row(count + 1, kNever));
  auto devices_of = [&](size_t site) {
    return site == count ? std::vector<uint32_t>{0} : sites[site].devices;
  };
  for (size_t a = 0; a <= count; ++a) {
    for (size_t b = 0; b <= count; ++b) {
      for (const uint32_t from : devices_of(a)) {
        for (const uint32_t to : devices_of(b)) {
          if (from == to) continue;
          double& least = a == b ? sites[a].inside : hop[a][b];
          least = std::min(least, problem.hop[from][to]);
        }
      }
    }
  }
  auto between = [&](size_t a, size_t b) {
    if (a != b) return hop[a][b];
    return a == count ? 0 : sites[a].inside;
  };
  // A way that comes to a site again and again is no longer if all but one of the visits are cut
  // out of it and each is counted as the least that this saves.
  auto saving = [&](size_t site, double inside) {
    double least = inside;
    for (size_t from = 0; from <= count; ++from) {
      for (size_t to = 0; to <= count; ++to) {
        if (from == site || to == site) continue;
        const double direct = between(from, to);
        const double through = hop[from][site] + hop[site][to];
        if (direct < kNever && through < kNever) least = std::min(least, through - direct);
      }
    }
    return least;
  };
  for (size_t i = 0; i < count; ++i) {
    Site& site = sites[i];
    site.again = site.devices.size() > 1 ? saving(i, site.inside) : 0;
    Row empty(problem.layers + 1, kNever);
    empty[0] = 0;
    site.tables.push_back(std::move(empty));
    for (const uint32_t device : site.devices) {
      site.tables.push_back(add(site.tables.back(), runs_of(problem, device), site.again));
    }
  }
  // The host's own layers cost no hop, and where they save one (hops that break the triangle
  // inequality) the bound must know.
  const Row own = runs_of(problem, 0);

  // Least ways from the host through all sites of a set, to its last one.
  const size_t sets = size_t{1} << count;
  std::vector<Row> way(sets, Row(count, kNever));
  std::vector<Row> held(sets);
  held[0] = own;
  if (count != 0) {
    const double saved = std::min(0.0, saving(count, 0));
    for (size_t n = 1; n < own.size(); ++n) held[0][n] += saved;
  }
  answer.bound = own[problem.layers];
  size_t best_set = 0;
  size_t best_last = count;
  for (size_t set = 1; set < sets; ++set) {
    const auto lowest = static_cast<size_t>(std::countr_zero(set));
    Row visited = sites[lowest].tables.back();
    for (size_t n = 1; n < visited.size(); ++n) visited[n] -= sites[lowest].again;
    // Without the empty share: a set's sites are all visited.
    const Row& rest = held[set & (set - 1)];
    Row& both = held[set];
    both.assign(problem.layers + 1, kNever);
    for (size_t taken = 1; taken <= problem.layers; ++taken) {
      if (visited[taken] == kNever) continue;
      for (size_t i = 0; i + taken <= problem.layers; ++i) {
        both[i + taken] = std::min(both[i + taken], rest[i] + visited[taken]);
      }
    }
    for (size_t last = 0; last < count; ++last) {
      if ((set >> last & 1) == 0) continue;
      const size_t before = set & ~(size_t{1} << last);
      double least = before == 0 ? hop[count][last] : kNever;
      for (size_t from = 0; from < count; ++from) {
        if ((before >> from & 1) != 0) {
          least = std::min(least, way[before][from] + hop[from][last]);
        }
      }
      way[set][last] = least;
      const double cost = both[problem.layers] + least + hop[last][count];
      if (cost < answer.bound) {
        answer.bound = cost;
        best_set = set;
        best_last = last;
      }
    }
  }
  // The host, the sites along the best way, then all others: in_order() leaves out what it can.
  std::vector<size_t> path;
  for (size_t set = best_set, last = best_last; set != 0;) {
    path.push_back(last);
    set &= ~(size_t{1} << last);
    size_t next = 0;
    double least = kNever;
    for (size_t from = 0; from < count; ++from) {
      if ((set >> from & 1) != 0 && way[set][from] + hop[from][last] < least) {
        least = way[set][from] + hop[from][last];
        next = from;
      }
    }
    last = next;
  }
  std::reverse(path.begin(), path.end());
  for (size_t i = 0; i < count; ++i) {
    if ((best_set >> i & 1) == 0) path.push_back(i);
  }
  answer.order.push_back(0);
  for (const size_t i : path) {
    answer.order.insert(answer.order.end(), sites[i].devices.begin(), sites[i].devices.end());
  }
  return answer;
}

}  // namespace tandem::ring::search
