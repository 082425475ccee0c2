// What is computed, and what must come out, whoever computes it.
#pragma once

#include "backend.hpp"
#include "finding.hpp"

#include <string_view>
#include <vector>

namespace probe {

struct Workload {
    std::string_view name;
    Finding (*run)(const Backend&);
};

// In the order in which they run.
const std::vector<Workload>& all_workloads();

} // namespace probe
