// The device nodes and the kernel's own tables, read without HIP:
// which render node belongs to a device, and why no device is there.
#pragma once

#include "report.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace probe {

// "/dev/dri/renderD128" for the device at a PCI address ("0000:03:00.0"), if that node is here.
// `root` is "/" but in tests.
std::optional<std::string> render_node_of(const std::filesystem::path& root, const std::string& pci_bus_id);

// Called when the runtime finds no device: looks for the reason, from the outside in.
Failure why_no_gpu(const std::filesystem::path& root);

// What an errno from opening `path`, a node that exists below `root`, means, and what to do about it.
Failure why_not_opened(const std::filesystem::path& root, const std::string& path, int error);

} // namespace probe
