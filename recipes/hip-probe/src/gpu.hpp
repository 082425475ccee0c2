// The GPU as the one who computes, and what is asked of a GPU alone.
#pragma once

#include "backend.hpp"
#include "devices.hpp"
#include "finding.hpp"
#include "kernels.hpp"

#include <string_view>
#include <vector>

namespace probe {

// The current device, through the kernels.
extern const Backend kGpu;

// Asks device code who it is, and compares the answer with what the runtime says about the device.
struct Identification {
    Finding finding;
    Identity identity;
};
Identification identify(const Device& device, const std::vector<std::string_view>& compiled_for);

// One stream waits for another one's event, and time passes between two events.
Finding check_streams(const Device& device);

} // namespace probe
