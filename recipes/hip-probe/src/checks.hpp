// What is computed on the GPU, and compared with what it must be.
#pragma once

#include "devices.hpp"
#include "kernels.hpp"

#include <string_view>
#include <vector>

namespace probe {

// `expected` and `got` are equal exactly when the check passed.
struct Finding {
    json::Value expected;
    json::Value got;
    std::string detail;

    bool ok() const { return expected.text == got.text; }
};

struct Check {
    std::string_view name;
    Finding (*run)(const Device&);
};

// In the order in which they run.
const std::vector<Check>& all_checks();

// Asks device code who it is, and compares the answer with what the runtime says about the device.
struct Identification {
    Finding finding;
    Identity identity;
};
Identification identify(const Device& device, const std::vector<std::string_view>& compiled_for);

} // namespace probe
