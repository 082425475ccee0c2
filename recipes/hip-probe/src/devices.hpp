// The GPUs as the HIP runtime describes them.
#pragma once

#include "json.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace probe {

struct Device {
    int index;
    std::string name;
    std::string gcn_arch;   // with its features: "gfx90a:sramecc+:xnack-"
    std::string pci_bus_id; // domain:bus:device.function
    std::optional<std::string> render_node;
    std::uint64_t total_memory; // bytes
    int wavefront_size;
    int compute_units;
    bool integrated;
    int clock_rate; // of wall_clock64() in device code, kHz

    std::string description() const;
};

json::Value to_json(const Device& device);

// "7.2.53211" from the number that the runtime gives for a version.
std::string version_text(int version);

// Throws a Failure with verdict no_gpu where there is none.
std::vector<Device> find_devices();

} // namespace probe
